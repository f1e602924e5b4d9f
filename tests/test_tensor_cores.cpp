// Convolutions and linear layers in tf32 and bf16: the formula in double of what is rounded
// (products of rounded numbers are exact, so what is left is the rounding of sums, and in bf16 of
// the activations that are stored), and of what is not.
#include "kernels/simt/emulator.h"
#include "tests/device.h"
#include "tests/reference.h"
#include "tests/through_device.h"

namespace convoy {

TEST_SUITE_BEGIN("device");

namespace {

const ConvCase kCases[] = {
    {{1, 1, 1, 1}, 1, Window::square(1)},
    {{2, 5, 7, 3}, 5, Window::square(3, 1, 1)},      // single floats in all three
    {{1, 35, 31, 3}, 24, Window::square(11, 4, 2)},  // a first layer
    {{1, 6, 6, 36}, 40, Window::square(3, 1, 1)},    // fours, not eights
    {{2, 9, 7, 20}, 24, Window::square(3, 2, 1)},    // stride, odd sizes
    {{2, 9, 7, 24}, 16, Window::square(3, 2, 1)},    // the same in eights
    {{1, 8, 12, 6}, 7, Window{3, 5, 2, 3, 1, 0}},    // rectangular in everything
    {{1, 9, 13, 136}, 72, Window::square(1)},        // wide tiles, and more than one
    {{1, 3, 3, 72}, 66, Window::square(3, 1, 1)},    // the depth in parts
    {{2, 20, 20, 4}, 8, Window::square(1)},          // for grad_w too
    {{1, 10, 11, 16}, 24, Window::square(3, 3, 1)},  // nine kinds of pixels in grad_x
    {{1, 11, 7, 8}, 136, Window::square(2, 3, 0)},   // kinds that meet no tap
    {{1, 2, 1, 24}, 16, Window::square(3, 3, 2)},    // a stride larger than the image
    {{2, 4, 5, 8}, 16, Window{3, 2, 2, 1, 7, 6}},    // patches of padding alone
    {{1, 70, 3, 8}, 8, Window{65, 1, 2, 1, 30, 0}},  // a window of more rows than a word has bits
};

std::vector<float> rounded(std::vector<float> x, Precision precision) {
    for (float& v : x) v = reference::rounded(v, precision);
    return x;
}

// Relative error of a product of two rounded numbers: twice half a unit of the last bit.
double product_tolerance(Precision precision) {
    return precision == Precision::kTf32 ? 0x1p-10 : 0x1p-7;
}

// What storing a result as bf16 may cost: half a unit of the last of 8 bits.
double storage_tolerance(Precision precision, const std::vector<double>& want) {
    double largest = 0;
    for (double v : want) largest = std::max(largest, std::abs(v));
    return precision == Precision::kBf16 ? largest * 0x1p-8 : 0;
}

void check_conv(Backend& backend, Precision precision, const ConvCase& c) {
    const Shape xs = c.x, ws{c.K, c.window.size_h, c.window.size_w, xs.C};
    const Shape ys = reference::conv_shape(xs, ws, c.window);
    CAPTURE(cat("x ", xs.text(), " w ", ws.text()));
    std::vector<float> x = random_floats(xs.elems(), 1), w = random_floats(ws.elems(), 2);
    std::vector<float> b = random_floats(c.K, 3), dy = random_floats(ys.elems(), 4);
    const reference::Array X(xs, rounded(x, precision)), W(ws, rounded(w, precision)),
        DY(ys, rounded(dy, precision));
    const double own = product_tolerance(precision);

    Guarded y(ys.elems());
    backend.conv2d({x.data(), xs}, {w.data(), ws}, b.data(), c.window, true, {y.data(), ys});
    double terms = double(ws.row_elems()) + 1;
    const auto want_y = reference::conv2d(X, W, b, c.window, true);
    const double stored = storage_tolerance(precision, want_y.v);
    CHECK_CLOSE(y.span(), want_y.v, sum_tolerance(terms) + stored);
    const auto exact = reference::conv2d({xs, x}, {ws, w}, b, c.window, true);
    CHECK_CLOSE(y.span(), exact.v, terms * own + sum_tolerance(terms) + stored);

    Guarded dx(xs.elems());
    backend.conv2d_grad_x({dy.data(), ys}, {w.data(), ws}, c.window, {x.data(), xs},
                          {dx.data(), xs});
    terms = double(ws.N) * ws.H * ws.W;
    const auto want_dx = reference::conv2d_grad_x(DY, W, c.window, xs, x);
    CHECK_CLOSE(dx.span(), want_dx.v,
                sum_tolerance(terms) + storage_tolerance(precision, want_dx.v));

    const std::vector<float> dw0 = random_floats(w.size(), 5);
    Guarded dw(dw0), db(b);
    backend.conv2d_grad_w({x.data(), xs}, {dy.data(), ys}, c.window, {dw.data(), ws}, db.data());
    auto want = reference::conv2d_grad_w(X, DY, c.window, ws);
    for (size_t i = 0; i < dw0.size(); ++i) want.v[i] += dw0[i];
    // In tf32 sums of what is not rounded.
    auto want_db =
        reference::column_sums(precision == Precision::kBf16 ? DY : reference::Array(ys, dy));
    for (int k = 0; k < c.K; ++k) want_db[k] += b[k];
    terms = double(ys.elems()) / c.K + 1;
    CHECK_CLOSE(dw.span(), want.v, sum_tolerance(terms));
    CHECK_CLOSE(db.span(), want_db, sum_tolerance(terms));
}

}  // namespace

TEST_CASE("conv2d and its gradients in tf32 are the formula of numbers with 10 bits") {
    auto backend = each_backend(2, Precision::kTf32);
    for (const ConvCase& c : kCases) check_conv(*backend, Precision::kTf32, c);
}

TEST_CASE("conv2d and its gradients in bf16 are the formula of numbers with 7 bits") {
    auto backend = each_backend(2, Precision::kBf16);
    for (const ConvCase& c : kCases) check_conv(*backend, Precision::kBf16, c);
}

// Cut into bands, with more panels than threads, and gradients of weights that each thread sums for
// itself or that all share.
TEST_CASE("conv2d and its gradients in bf16 on the CPU, where images and filters are cut") {
    ThroughDevice backend(make_backend(
        "cpu", {.threads = 2, .conv = ConvMethod::kDirect, .precision = Precision::kBf16}));
    for (const ConvCase& c : {ConvCase{{1, 50, 47, 32}, 40, Window::square(3, 1, 1)},
                              {{2, 6, 5, 72}, 130, Window::square(3, 1, 1)},
                              {{1, 9, 11, 40}, 200, Window::square(5, 1, 2)},
                              {{1, 61, 57, 3}, 20, Window::square(7, 2, 3)},
                              {{3, 33, 31, 64}, 48, Window::square(1, 2)},
                              {{1, 60, 60, 32}, 33, Window::square(1)},
                              {{2, 40, 43, 150}, 230, Window{1, 2, 1, 1, 0, 1}}})
        check_conv(backend, Precision::kBf16, c);
}

TEST_CASE("linear and its gradients on tensor cores are convolutions of single pixels") {
    auto backend = each_backend(2, Precision::kBf16);
    const int N = 5, C = 2 * 3 * 50, K = 67;
    const Shape xs{N, 2, 3, 50}, rows{N, 1, 1, C}, ws{K, 1, 1, C}, ys{N, 1, 1, K};
    std::vector<float> x = random_floats(xs.elems(), 1), w = random_floats(ws.elems(), 2);
    std::vector<float> b = random_floats(K, 3), dy = random_floats(ys.elems(), 4);
    const auto round = [](const std::vector<float>& v) { return rounded(v, Precision::kBf16); };
    const reference::Array X(rows, round(x)), W(ws, round(w)), DY(ys, round(dy));
    const Window point = Window::square(1);
    Guarded y(ys.elems()), dx(xs.elems()), dw(w), db(b);
    backend->linear({x.data(), xs}, {w.data(), ws}, b.data(), true, {y.data(), ys});
    const auto stored = [](const reference::Array& want) {
        return storage_tolerance(Precision::kBf16, want.v);
    };
    const auto want_y = reference::conv2d(X, W, b, point, true);
    CHECK_CLOSE(y.span(), want_y.v, sum_tolerance(C + 1) + stored(want_y));
    backend->linear_grad_x({dy.data(), ys}, {w.data(), ws}, {x.data(), xs}, {dx.data(), xs});
    const auto want_dx = reference::conv2d_grad_x(DY, W, point, rows, x);
    CHECK_CLOSE(dx.span(), want_dx.v, sum_tolerance(K) + stored(want_dx));
    backend->linear_grad_w({x.data(), xs}, {dy.data(), ys}, {dw.data(), ws}, db.data());
    auto want = reference::conv2d_grad_w(X, DY, point, ws);
    for (size_t i = 0; i < w.size(); ++i) want.v[i] += w[i];
    CHECK_CLOSE(dw.span(), want.v, sum_tolerance(N + 1));
}

// A missing barrier, or a copy into a stage that is still read, shows as another result or a NaN.
TEST_CASE("convolutions on tensor cores give the same bits in whatever order threads run") {
    const Shape xs{1, 9, 9, 40}, ws{24, 3, 3, 40}, ys{1, 9, 9, 24};
    std::vector<float> x = random_floats(xs.elems(), 1), w = random_floats(ws.elems(), 2), first;
    for (uint64_t seed : {1, 2, 3}) {
        simt::set_seed(seed);
        ThroughDevice backend(
            make_backend(kernel_device(), {.threads = 2, .precision = Precision::kTf32}));
        std::vector<float> y(ys.elems(), NAN);
        backend.conv2d({x.data(), xs}, {w.data(), ws}, nullptr, Window::square(3, 1, 1), false,
                       {y.data(), ys});
        if (first.empty()) first = y;
        CHECK(y == first);
        CHECK(std::isfinite(y[0]));
    }
}

TEST_CASE("a NaN in the data comes out of a convolution on tensor cores, and 0 images are fine") {
    for (Precision precision : {Precision::kTf32, Precision::kBf16}) {
        ThroughDevice backend(
            make_backend(kernel_device(), {.threads = 1, .precision = precision}));
        float x = NAN, w = 1, y = 0;
        backend.conv2d({&x, 1, 1, 1, 1}, {&w, 1, 1, 1, 1}, nullptr, Window::square(1), true,
                       {&y, 1, 1, 1, 1});
        CHECK(std::isnan(y));
        backend.conv2d({nullptr, 0, 1, 1, 1}, {&w, 1, 1, 1, 1}, nullptr, Window::square(1), true,
                       {nullptr, 0, 1, 1, 1});
        backend.conv2d_grad_w({nullptr, 0, 1, 1, 1}, {nullptr, 0, 1, 1, 1}, Window::square(1),
                              {&w, 1, 1, 1, 1}, nullptr);
        CHECK(w == 1);
    }
}

TEST_CASE("convolutions on a GPU refuse images of more than 32767 rows or columns") {
    ThroughDevice backend(make_backend(kernel_device(), {.threads = 1}));
    std::vector<float> x(40000), y(40000);
    float w = 1;
    for (const Shape shape : {Shape{1, 40000, 1, 1}, Shape{1, 1, 40000, 1}})
        CHECK_THROWS_WITH_AS(backend.conv2d({x.data(), shape}, {&w, 1, 1, 1, 1}, nullptr,
                                            Window::square(1), false, {y.data(), shape}),
                             doctest::Contains("32767"), Error);
}

TEST_CASE("the CPU refuses tf32, the model says what it multiplies in") {
    CHECK_THROWS_WITH_AS(make_backend("cpu", {.precision = Precision::kTf32}),
                         doctest::Contains("--precision tf32"), Error);
    const auto model = make_backend(kernel_device(), {.threads = 1, .precision = Precision::kTf32});
    CHECK(model->description().find("products in tf32") != std::string::npos);
}

}  // namespace convoy
