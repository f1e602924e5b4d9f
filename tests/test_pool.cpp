#include "tests/check_ops.h"

namespace convoy {

TEST_SUITE_BEGIN("device");

namespace {

struct Case {
    Shape x;
    Window window;
};
const Case kCases[] = {
    {{1, 1, 1, 1}, Window::square(1)},
    {{2, 4, 6, 16}, Window::square(2, 2, 0)},
    {{2, 7, 9, 33}, Window::square(3, 2, 1)},
    {{1, 13, 13, 20}, Window::square(3, 2, 0)},
    {{1, 5, 6, 3}, Window{2, 3, 1, 2, 1, 1}},
    {{2, 5, 5, 35}, Window::square(5, 1, 2)},
    {{2, 7, 9, 40}, Window::square(3, 2, 1)},        // packs of channels
    {{1, 9, 9, 4}, Window::square(2, 3, 0)},         // pixels that no window reads
    {{1, 6, 7, 5}, Window{3, 2, 2, 1, 0, 0, 1, 1}},  // windows that end outside
};

// Few different values, so that many windows have equal maxima; all negative, so that padding
// taken for a zero would win.
std::vector<float> steps(size_t n, uint64_t seed) {
    std::vector<float> x = random_floats(n, seed);
    for (float& v : x) v = std::floor(v * 3) - 4;
    return x;
}

void check_max_pool(Backend& backend) {
    for (const Case& c : kCases) {
        CAPTURE(c.x.text());
        std::vector<float> x = steps(c.x.elems(), 1);
        std::vector<int> where;
        const auto want = reference::max_pool({c.x, x}, c.window, where);
        Guarded y(want.v.size());
        std::vector<uint8_t> argmax(want.v.size() + 2, 77);
        backend.max_pool(view(x, c.x), c.window, view(y, want.shape), argmax.data() + 1);
        CHECK_CLOSE(y.span(), want.v, 0.0);
        CHECK(argmax.front() == 77);
        CHECK(argmax.back() == 77);
        CHECK(std::vector<int>(argmax.begin() + 1, argmax.end() - 1) == where);
    }
}

void check_max_pool_grad(Backend& backend, Precision precision) {
    for (const Case& c : kCases) {
        CAPTURE(c.x.text());
        std::vector<float> x = steps(c.x.elems(), 1), mask = random_floats(c.x.elems(), 2);
        std::vector<int> where;
        const auto y = reference::max_pool({c.x, x}, c.window, where);
        std::vector<float> dy = rounded(random_floats(y.v.size(), 3), precision);
        const std::vector<uint8_t> argmax(where.begin(), where.end());
        for (std::vector<float> m : {std::vector<float>{}, mask}) {
            Guarded dx(x.size());
            backend.max_pool_grad(view(dy, y.shape), argmax.data(), c.window,
                                  m.empty() ? Tensor{} : view(m, c.x), view(dx, c.x));
            const auto want = reference::max_pool_grad({y.shape, dy}, where, c.window, c.x, m);
            check_stored(dx.span(), want.v, sum_tolerance(25), precision, "max_pool_grad");
        }
    }
}

// Areas overlap in some.
void check_avg_pool(Backend& backend, Precision precision) {
    const std::pair<Shape, Shape> cases[] = {
        {{1, 1, 1, 1}, {1, 1, 1, 1}},
        {{2, 7, 7, 33}, {2, 1, 1, 33}},
        {{2, 13, 10, 5}, {2, 6, 6, 5}},
        {{1, 3, 4, 18}, {1, 7, 7, 18}},  // more outputs than inputs
    };
    for (const auto& [xs, ys] : cases) {
        CAPTURE(xs.text());
        std::vector<float> x = rounded(random_floats(xs.elems(), 1), precision);
        std::vector<float> dy = rounded(random_floats(ys.elems(), 2), precision);
        const reference::Array X(xs, x), DY(ys, dy);
        reference::Array want(ys), want_dx(xs);
        reference::each_area(xs, ys,
                             [&, &xs = xs](int n, int p, int q, int h, int w, double share) {
                                 for (int c = 0; c < xs.C; ++c) {
                                     want.at(n, p, q, c) += share * X.at(n, h, w, c);
                                     want_dx.at(n, h, w, c) += share * DY.at(n, p, q, c);
                                 }
                             });
        Guarded y(ys.elems()), dx(xs.elems());
        backend.avg_pool(view(x, xs), view(y, ys));
        backend.avg_pool_grad(view(dy, ys), view(dx, xs));
        check_stored(y.span(), want.v, sum_tolerance(51), precision, "avg_pool");
        check_stored(dx.span(), want_dx.v, sum_tolerance(10), precision, "avg_pool_grad");
        Guarded sum(x);
        backend.avg_pool_grad(view(dy, ys), view(sum, xs), true);
        for (size_t i = 0; i < x.size(); ++i) want_dx.v[i] += x[i];
        check_stored(sum.span(), want_dx.v, sum_tolerance(11), precision, "avg_pool_grad +=");
    }
}

}  // namespace

TEST_CASE("max_pool takes the first maximum, avg_pool the mean; their gradients match") {
    in_both([](Backend& backend, Precision precision) {
        check_max_pool(backend);
        check_max_pool_grad(backend, precision);
        check_avg_pool(backend, precision);
    });
}

TEST_CASE("max_pool passes a NaN on") {
    auto backend = each_backend();
    for (int place = 0; place < 4; ++place) {
        float x[4] = {1, 2, 3, 4}, y = 0;
        uint8_t argmax = 9;
        x[place] = NAN;
        backend->max_pool({x, 1, 2, 2, 1}, Window::square(2, 2, 0), {&y, 1, 1, 1, 1}, &argmax);
        CHECK(std::isnan(y));
        CHECK(argmax == place);
    }
}

TEST_CASE("pools of no images do nothing; wrong shapes and windows are refused") {
    auto backend = each_backend();
    const Window two = Window::square(2, 2, 0);
    uint8_t argmax[8];
    backend->max_pool({nullptr, 0, 4, 4, 2}, two, {nullptr, 0, 2, 2, 2}, argmax);
    backend->max_pool_grad({nullptr, 0, 2, 2, 2}, argmax, two, nullptr, {nullptr, 0, 4, 4, 2});
    backend->avg_pool({nullptr, 0, 4, 4, 2}, {nullptr, 0, 1, 1, 2});
    backend->avg_pool_grad({nullptr, 0, 1, 1, 2}, {nullptr, 0, 4, 4, 2});
    float data[64] = {};
    CHECK_FAILS(backend->max_pool({data, 1, 4, 4, 2}, two, {data, 1, 2, 1, 2}, argmax),
                "want 1x2x2x2");
    CHECK_THROWS_AS(
        backend->max_pool({data, 1, 4, 4, 1}, Window::square(2, 1, 2), {data, 1, 7, 7, 1}, argmax),
        Error);
    const Window dilated{2, 2, 1, 1, 0, 0, 0, 0, 2, 2};
    CHECK_THROWS_AS(backend->max_pool({data, 1, 4, 4, 1}, dilated, {data, 1, 2, 2, 1}, argmax),
                    Error);
    CHECK_THROWS_AS(backend->avg_pool({data, 1, 4, 4, 2}, {data, 1, 1, 1, 1}), Error);
}

TEST_SUITE_END();

}  // namespace convoy
