// Direct and depthwise convolutions in fp32. In tf32 and bf16: test_tensor_cores.cpp,
// test_tiles.cpp; Winograd's method: test_winograd.cpp.
#include "tests/check_ops.h"

namespace convoy {

TEST_SUITE_BEGIN("device");

namespace {

// What a convolution needs, filled with random numbers.
struct Problem {
    Shape x_shape, w_shape, y_shape;
    Window window;
    std::vector<float> x, w, b, dy;

    explicit Problem(const ConvCase& c)
        : x_shape(c.x),
          w_shape{c.K, c.window.size_h, c.window.size_w, c.depthwise ? 1 : c.x.C},
          y_shape(reference::conv_shape(c.x, w_shape, c.window)),
          window(c.window),
          x(random_floats(x_shape.elems(), 1)),
          w(random_floats(w_shape.elems(), 2)),
          b(random_floats(c.K, 3)),
          dy(random_floats(y_shape.elems(), 4)) {}

    reference::Array X() const { return {x_shape, x}; }
    reference::Array DY() const { return {y_shape, dy}; }
    std::string text() const {
        return cat("x ", x_shape.text(), " w ", w_shape.text(), " stride ", window.stride_h, "x",
                   window.stride_w, " pad ", window.pad_h, "x", window.pad_w);
    }
};

std::unique_ptr<Backend> direct(int threads) {
    return make_backend("cpu", {.threads = threads, .conv = ConvMethod::kDirect});
}

}  // namespace

TEST_CASE("conv2d and its gradients match the formula in double") {
    auto backend = each_direct(2);
    for (const ConvCase& c : kConvCases) check_conv(*backend, Precision::kFp32, c);
    for (const ConvCase& c : kDepthwiseCases) check_conv(*backend, Precision::kFp32, c);
}

TEST_CASE("dilated convolutions match the formula at strides 1, 2, 3, in fp32 and bf16") {
    for (const Precision precision : {Precision::kFp32, Precision::kBf16})
        SUBCASE(name_of(precision)) {
            auto backend = each_direct(2, precision);
            for (int s = 1; s <= 3; ++s)
                for (int d = 1; d <= 4; ++d)
                    for (const auto& [t, e] : {std::pair{s, d}, {4 - s, 5 - d}}) {
                        const Window window{3, 4, s, t, d, 2 * e - 1, 0, s % 2, d, e};
                        const int C = d % 2 ? 5 : 16;
                        check_conv(*backend, precision, {{2, 9, 11, C}, 6, window});
                        check_conv(*backend, precision, {{1, 9, 11, C}, C, window, true});
                    }
        }
}

TEST_CASE("a depthwise convolution leaves the moments of what it makes") {
    auto backend = each_backend(2);
    const Shape xs{3, 5, 4, 36}, ws{36, 3, 3, 1};
    std::vector<float> x = random_floats(xs.elems(), 1), w = random_floats(ws.elems(), 2);
    const std::vector<int> groups{0, 2, 3};
    Guarded y(xs.elems()), kept(144), sums(72, 1.0f), want_kept(144), want_sums(72, 1.0f);
    const Moments of_y{groups, 1e-5f, kept.data(), sums.data()};
    backend->conv2d(view(x, xs), view(w, ws), nullptr, Window::square(3, 1, 1), true, view(y, xs),
                    &of_y);
    backend->moments(view(y, xs), {groups, 1e-5f, want_kept.data(), want_sums.data()});
    CHECK(std::vector<float>(kept) == std::vector<float>(want_kept));
    CHECK(std::vector<float>(sums) == std::vector<float>(want_sums));
}

// L = Σ y·dy is linear in x and in w, so a difference quotient has no truncation error; what is
// left is the rounding of y, about 2⁻²³·terms·√(outputs) over the step.
TEST_CASE("conv2d_grad_x and conv2d_grad_w match finite differences, stride 2, pad 1") {
    auto backend = each_direct(1);
    Problem p({{2, 5, 6, 3}, 4, Window::square(3, 2, 1)});
    std::vector<float> dx(p.x.size()), dw(p.w.size(), 0.0f), y(p.y_shape.elems());
    backend->conv2d_grad_x(view(p.dy, p.y_shape), view(p.w, p.w_shape), p.window, nullptr,
                           view(dx, p.x_shape));
    backend->conv2d_grad_w(view(p.x, p.x_shape), view(p.dy, p.y_shape), p.window,
                           view(dw, p.w_shape), nullptr);
    const auto loss = [&] {
        backend->conv2d(view(p.x, p.x_shape), view(p.w, p.w_shape), nullptr, p.window, false,
                        view(y, p.y_shape));
        double sum = 0;
        for (size_t i = 0; i < y.size(); ++i) sum += double(y[i]) * p.dy[i];
        return sum;
    };
    const auto differences = [&](std::vector<float>& v) {
        std::vector<double> slopes;
        for (float& value : v) {
            const float before = value;
            value = before + 0.5f;
            const double up = loss();
            value = before - 0.5f;
            slopes.push_back(up - loss());
            value = before;
        }
        return slopes;
    };
    const double tolerance = sum_tolerance(27 * std::sqrt(double(y.size())), 2);
    CHECK_CLOSE(dx, differences(p.x), tolerance);
    CHECK_CLOSE(dw, differences(p.w), tolerance);
}

TEST_CASE("convolutions give the same bits in every run, on any number of threads") {
    // dw of the last three has several separate sums; in the last case they are those of dwᵀ.
    const ConvCase cases[] = {{{2, 13, 11, 20}, 40, Window::square(3, 1, 1)},
                              {{2, 31, 31, 3}, 64, Window::square(11, 4, 2)},
                              {{8, 16, 16, 40}, 40, Window::square(3, 1, 1), true},
                              {{9, 20, 20, 3}, 32, Window::square(3, 1, 1)},
                              {{16, 16, 16, 16}, 32, Window::square(1)}};
    for (const ConvCase& c : cases) {
        Problem p(c);
        CAPTURE(p.text());
        const auto all = [&](Backend& backend) {
            std::vector<float> y(p.y_shape.elems()), dx(p.x.size()), dw(p.w.size(), 0.0f);
            backend.conv2d(view(p.x, p.x_shape), view(p.w, p.w_shape), p.b.data(), p.window, false,
                           view(y, p.y_shape));
            backend.conv2d_grad_x(view(p.dy, p.y_shape), view(p.w, p.w_shape), p.window, nullptr,
                                  view(dx, p.x_shape));
            backend.conv2d_grad_w(view(p.x, p.x_shape), view(p.dy, p.y_shape), p.window,
                                  view(dw, p.w_shape), nullptr);
            y.insert(y.end(), dx.begin(), dx.end());
            y.insert(y.end(), dw.begin(), dw.end());
            return y;
        };
        auto one = direct(1);
        const std::vector<float> want = all(*one);
        for (int threads : {1, 2, 3, 24}) {
            auto backend = direct(threads);
            CHECK(all(*backend) == want);
            CHECK(all(*backend) == want);
        }
    }
}

TEST_CASE("convolutions of no images write nothing and leave gradients as they are") {
    auto backend = each_backend();
    for (const bool depthwise : {false, true}) {
        Problem p({{0, 5, 5, 4}, 4, Window::square(3, 1, 1), depthwise});
        Guarded dw(p.w), db(p.b);
        backend->conv2d({nullptr, p.x_shape}, view(p.w, p.w_shape), nullptr, p.window, true,
                        {nullptr, p.y_shape});
        backend->conv2d_grad_x({nullptr, p.y_shape}, view(p.w, p.w_shape), p.window, nullptr,
                               {nullptr, p.x_shape});
        backend->conv2d_grad_w({nullptr, p.x_shape}, {nullptr, p.y_shape}, p.window,
                               view(dw, p.w_shape), db.data());
        CHECK(std::vector<float>(dw) == p.w);
        CHECK(std::vector<float>(db) == p.b);
    }
}

TEST_CASE("conv2d lets a NaN through relu, so that it is noticed") {
    auto backend = each_backend();
    float x = NAN, w = 1, y = 0;
    backend->conv2d({&x, 1, 1, 1, 1}, {&w, 1, 1, 1, 1}, nullptr, Window::square(1), true,
                    {&y, 1, 1, 1, 1});
    CHECK(std::isnan(y));
}

TEST_CASE("conv2d refuses shapes that do not fit, naming them") {
    auto backend = each_backend();
    float data[512] = {};
    const Window window = Window::square(3, 1, 1);
    CHECK_FAILS(backend->conv2d({data, 1, 4, 4, 2}, {data, 2, 3, 3, 2}, nullptr, window, false,
                                {data, 1, 3, 4, 2}),
                "y is 1x3x4x2, want 1x4x4x2");
    CHECK_FAILS(backend->conv2d({data, 1, 4, 4, 2}, {data, 2, 3, 3, 3}, nullptr, window, false,
                                {data, 1, 4, 4, 2}),
                "w is 2x3x3x3, x is 1x4x4x2");
    CHECK_FAILS(backend->conv2d({data, 1, 5, 5, 4}, {data, 2, 3, 3, 1}, nullptr, window, false,
                                {data, 1, 5, 5, 2}),
                "w is 2x3x3x1, x is 1x5x5x4");
    Window dilated = window;
    dilated.dilation_h = 3;
    CHECK_FAILS(backend->conv2d({data, 1, 4, 4, 2}, {data, 2, 3, 3, 2}, nullptr, dilated, false,
                                {data, 1, 4, 4, 2}),
                "window is 7x3");
    dilated.dilation_h = 0;
    CHECK_FAILS(backend->conv2d({data, 1, 4, 4, 2}, {data, 2, 3, 3, 2}, nullptr, dilated, false,
                                {data, 1, 4, 4, 2}),
                "dilation 0x1");
    CHECK_THROWS_AS(backend->conv2d_grad_x({data, 1, 4, 4, 1}, {data, 2, 3, 3, 2}, window, nullptr,
                                           {data, 1, 4, 4, 2}),
                    Error);
    CHECK_THROWS_AS(backend->conv2d_grad_w({data, 1, 2, 2, 2}, {data, 1, 1, 1, 2},
                                           Window::square(3, 1, 0), {data, 2, 3, 3, 2}, nullptr),
                    Error);
}

// What the CPU backend does in another way where it pays; on other devices these are slow and no
// different from the cases above.
TEST_CASE("1x1 convolutions of few channels, as they lie and with the sides exchanged") {
    // Gradients of weights: x in place; dy in place, which gives the transpose of dw; neither.
    for (const auto& [C, K] : {std::pair{64, 40}, {40, 64}, {40, 72}, {96, 33}, {33, 96}})
        for (int threads : {1, 2}) {
            Problem p({{2, 20, 15, C}, K, Window::square(1)});
            CAPTURE(cat(p.text(), " threads ", threads));
            Guarded dw(p.w), db(p.b);
            direct(threads)->conv2d_grad_w(view(p.x, p.x_shape), view(p.dy, p.y_shape), p.window,
                                           view(dw, p.w_shape), db.data());
            auto want = reference::conv2d_grad_w(p.X(), p.DY(), p.window, p.w_shape);
            for (size_t i = 0; i < p.w.size(); ++i) want.v[i] += p.w[i];
            CHECK_CLOSE(dw.span(), want.v, sum_tolerance(601));
        }
}

TEST_CASE("a product of many columns and rows, whose packed rows are kept for the next columns") {
    // 520 of depth and 320 columns do not stay in L2 together; 3500 rows are more than are kept.
    const Shape xs{1, 50, 70, 520}, ws{320, 1, 1, 520}, ys{1, 50, 70, 320};
    std::vector<float> x = random_floats(xs.elems(), 1), w = random_floats(ws.elems(), 2);
    std::vector<float> b = random_floats(320, 3);
    for (int threads : {1, 2}) {
        Guarded y(ys.elems());
        direct(threads)->conv2d(view(x, xs), view(w, ws), b.data(), Window::square(1), true,
                                view(y, ys));
        Random random(1, 2, 3, kTest);
        std::vector<float> got;
        std::vector<double> want;
        for (int i = 0; i < 3000; ++i) {
            const size_t row = random.bits() % 3500, k = random.bits() % 320;
            double sum = b[k];
            for (int c = 0; c < 520; ++c) sum += double(x[row * 520 + c]) * w[k * 520 + c];
            got.push_back(y.span()[row * 320 + k]);
            want.push_back(std::max(0.0, sum));
        }
        CHECK_CLOSE(got, want, sum_tolerance(521));
    }
}

TEST_SUITE_END();

}  // namespace convoy
