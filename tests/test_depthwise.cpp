// Depthwise convolutions against the formula in double of an ordinary one, whose filters are 0 for
// all channels but their own.
#include "kernels/backend.h"
#include "tests/reference.h"
#include "tests/support.h"
#include "tests/through_device.h"

namespace convoy {

TEST_SUITE_BEGIN("device");

namespace {

struct Case {
    Shape x;
    Window window;
};
const Case kCases[] = {
    {{1, 1, 1, 2}, Window::square(1)},
    {{2, 5, 7, 3}, Window::square(3, 1, 1)},
    {{1, 9, 8, 33}, Window::square(3, 2, 1)},
    {{3, 6, 6, 36}, Window::square(3, 1, 1)},
    {{1, 23, 40, 20}, Window::square(3, 1, 1)},      // rows that are read in several pieces
    {{1, 8, 12, 6}, Window{3, 5, 2, 3, 1, 0}},       // rectangular in everything
    {{2, 6, 6, 4}, Window{2, 4, 1, 2, 1, 3}},        // more padding than half the window
    {{1, 10, 10, 5}, Window::square(2, 5, 0)},       // gaps between the windows
    {{1, 7, 6, 4}, Window{4, 3, 2, 2, 1, 0, 1, 1}},  // more padding at the end
    {{1, 2, 3, 40}, Window::square(7, 1, 3)},        // a window larger than the image
};

// What x and w are multiplied as, and what a stored result may be off by beside its sum.
void check(Backend& backend, Precision precision) {
    const bool halves = precision == Precision::kBf16;
    const auto draw = [&](size_t n, uint64_t seed) {
        std::vector<float> v = random_floats(n, seed);
        for (float& one : v) one = halves ? reference::rounded(one, precision) : one;
        return v;
    };
    for (const Case& c : kCases) {
        const int C = c.x.C, taps = c.window.size_h * c.window.size_w;
        const Shape ws{C, c.window.size_h, c.window.size_w, 1};
        const Shape ys = reference::conv_shape(c.x, ws, c.window);
        CAPTURE(cat("x ", c.x.text(), " w ", ws.text()));
        std::vector<float> x = draw(c.x.elems(), 1), w = draw(ws.elems(), 2),
                           dy = draw(ys.elems(), 3);
        std::vector<float> mask = draw(c.x.elems(), 4), b = random_floats(size_t(C), 5);
        reference::Array dense({C, ws.H, ws.W, C});
        for (int k = 0; k < C; ++k)
            for (int t = 0; t < taps; ++t) dense.v[size_t(k * taps + t) * C + k] = w[k * taps + t];
        const reference::Array X(c.x, x), DY(ys, dy);
        const double stored = halves ? 0x1p-8 * 4 : 0;  // of sums of a size of 4 at most

        for (bool full : {false, true}) {
            Guarded y(ys.elems()), sums(size_t(2) * C, 1.0f), kept(size_t(2) * C);
            const std::vector<int> groups{0, c.x.N};
            const Moments of_y{groups, 1e-5f, kept.data(), sums.data()};
            backend.conv2d(view(x, c.x), view(w, ws), full ? b.data() : nullptr, c.window, full,
                           view(y, ys), full ? &of_y : nullptr);
            const auto want =
                reference::conv2d(X, dense, full ? b : std::vector<float>{}, c.window, full);
            CHECK_CLOSE(y.span(), want.v, stored + sum_tolerance(taps + 1));
            if (!full) continue;
            std::vector<double> means(C, 1.0);  // += N · mean
            for (size_t i = 0; i < ys.elems(); ++i)
                means[i % C] += y.span()[i] * ys.N / (double(ys.elems()) / C);
            CHECK_CLOSE(sums.span().first(size_t(C)), means, sum_tolerance(64, c.x.N));
        }
        for (bool masked : {false, true}) {
            Guarded dx(c.x.elems());
            backend.conv2d_grad_x(view(dy, ys), view(w, ws), c.window,
                                  masked ? view(mask, c.x) : Tensor{}, view(dx, c.x));
            const auto want = reference::conv2d_grad_x(DY, dense, c.window, c.x,
                                                       masked ? mask : std::vector<float>{});
            CHECK_CLOSE(dx.span(), want.v, stored + sum_tolerance(taps));
        }
        const std::vector<float> dw0 = random_floats(ws.elems(), 9), db0 = random_floats(C, 10);
        Guarded dw(dw0), db(db0);
        backend.conv2d_grad_w(view(x, c.x), view(dy, ys), c.window, view(dw, ws), db.data());
        const auto all = reference::conv2d_grad_w(X, DY, c.window, dense.shape);
        std::vector<double> want_dw(dw0.begin(), dw0.end()), want_db = reference::column_sums(DY);
        for (int k = 0; k < C; ++k) want_db[k] += db0[k];
        for (int k = 0; k < C; ++k)
            for (int t = 0; t < taps; ++t)
                want_dw[k * taps + t] += all.v[size_t(k * taps + t) * C + k];
        const double terms = double(ys.elems()) / C + 1;
        CHECK_CLOSE(dw.span(), want_dw, sum_tolerance(terms));
        CHECK_CLOSE(db.span(), want_db, sum_tolerance(terms));
    }
}

}  // namespace

TEST_CASE("depthwise convolutions match the formula in double, in all three passes") {
    auto backend = each_backend(2);
    check(*backend, Precision::kFp32);
}

TEST_CASE("bf16: depthwise convolutions match the formula in double, in all three passes") {
    auto backend = each_backend(2, Precision::kBf16);
    check(*backend, Precision::kBf16);
}

TEST_CASE(
    "a depthwise grad_w has the same bits in every run, and the same sums on 1 to 3 threads") {
    const Shape xs{3, 9, 9, 40}, ws{40, 3, 3, 1};
    std::vector<float> x = random_floats(xs.elems(), 1), dy = random_floats(xs.elems(), 2), first;
    for (int threads : {1, 2, 3, 3}) {
        std::vector<float> dw(ws.elems(), 0.0f);
        auto backend = make_backend("cpu", {.threads = threads});
        for (int run = 0; run < 2; ++run) {
            std::vector<float> again(ws.elems(), 0.0f);
            backend->conv2d_grad_w(view(x, xs), view(dy, xs), Window::square(3, 1, 1),
                                   view(again, ws), nullptr);
            if (run == 1) CHECK(again == dw);
            dw = again;
        }
        if (first.empty()) first = dw;
        CHECK_CLOSE(dw, first, sum_tolerance(3 * 81));
    }
}

TEST_CASE("depthwise convolutions of no images write nothing; wrong shapes are refused") {
    auto backend = each_backend();
    const Window window = Window::square(3, 1, 1);
    const Shape xs{0, 5, 5, 4}, ws{4, 3, 3, 1};
    std::vector<float> w = random_floats(ws.elems(), 1);
    Guarded dw(w);
    backend->conv2d({nullptr, xs}, view(w, ws), nullptr, window, true, {nullptr, xs});
    backend->conv2d_grad_x({nullptr, xs}, view(w, ws), window, nullptr, {nullptr, xs});
    backend->conv2d_grad_w({nullptr, xs}, {nullptr, xs}, window, view(dw, ws), nullptr);
    CHECK(std::vector<float>(dw) == w);
    float x[100] = {};
    const Shape one{1, 5, 5, 4};
    CHECK_THROWS_WITH_AS(backend->conv2d({x, one}, {w.data(), {2, 3, 3, 1}}, nullptr, window, false,
                                         {x, {1, 5, 5, 2}}),
                         doctest::Contains("w is 2x3x3x1, x is 1x5x5x4"), Error);
}

}  // namespace convoy
