// Winograd's method against the formula in double. The bound of its error is relative, in L2, and
// comes from the matrices of winograd_body.h. In one dimension, a number m_j of the transformed
// product has the mean square |G_j|²·|Bᵀ_j|² (G_j, Bᵀ_j: rows; inputs independent, of variance 1)
// and enters output i with A_ji²; the output's own is r, the size of the filter. So rounding errors
// relative to m grow, relative to y, by √( Σ_ij A_ji²·|G_j|²·|Bᵀ_j|² / (m·r) ), which is 3.28 for
// F(4, 3) and 3.50 for F(2, 5); by its square, 10.8 and 12.3, in two dimensions. Relative to m
// there are some 12 roundings of the transforms and √(C/2) of the sum over C ≤ 256 channels in a
// row, each of 0.4·2^-24 rms: √(12 + 128)·0.4·2^-24·12.3 = 3.5e-6. Measured 0.5e-6 to 1.5e-6,
// allowed 5e-6. Images in bf16 are transformed as floats, so only storing y and dx adds an error,
// of half a unit of the last of 8 bits: 2^-8.
#include "tests/check_ops.h"

namespace convoy {

namespace {

constexpr double kBound = 5e-6;

struct Case {
    Shape x;
    int K;
    int pad_h, pad_w;
    int size = 3, extra = 0, stride = 1, dilation = 1;
    Window window() const {
        return {size, size, stride, stride, pad_h, pad_w, extra, extra, dilation, dilation};
    }
    Shape filters() const { return {K, size, size, x.C}; }
};
const Case kCases[] = {
    {{1, 3, 3, 1}, 16, 0, 0},
    {{2, 5, 7, 3}, 5, 1, 1},
    {{1, 13, 11, 33}, 35, 1, 1},
    {{2, 8, 8, 16}, 32, 0, 0},
    {{1, 6, 9, 20}, 14, 2, 2},
    {{3, 7, 7, 64}, 70, 1, 1},
    {{1, 4, 5, 8}, 9, 5, 3},        // blocks that lie wholly in the padding
    {{2, 14, 14, 150}, 170, 1, 1},  // large sums: threads share them
    {{1, 10, 9, 300}, 40, 1, 1},    // several blocks of depth, many channels
    {{9, 14, 15, 24}, 16, 1, 1},    // several blocks of tiles a thread
    {{1, 5, 5, 2}, 3, 0, 0, 5},
    {{2, 7, 10, 19}, 33, 2, 2, 5},
    {{1, 4, 3, 35}, 20, 4, 3, 5},
    {{3, 9, 9, 40}, 24, 2, 2, 5},
    {{1, 7, 9, 18}, 20, 0, 1, 3, 2},
    // through space to depth: several blocks of images, even and odd sizes, padding over a block
    {{18, 19, 23, 3}, 17, 2, 2, 11, 0, 4},
    {{2, 9, 8, 2}, 5, 1, 0, 5, 0, 2},
    {{2, 20, 17, 1}, 3, 4, 5, 9, 1, 2},
    {{1, 13, 12, 4}, 6, 0, 3, 6, 0, 2},
    // dilated: not by this method
    {{2, 9, 11, 20}, 16, 2, 2, 3, 0, 1, 2},
    {{2, 13, 12, 20}, 16, 4, 4, 5, 0, 2, 2},
    {{1, 13, 12, 4}, 6, 2, 3, 6, 0, 2, 3},
};

enum Input { kRandom, kConstant, kLargeMean, kSpread };

// kLargeMean: a mean of 100 with deviations of a thousandth. kSpread: sizes over six decades.
std::vector<float> fill(size_t n, uint64_t seed, Input kind) {
    std::vector<float> x = random_floats(n, seed);
    for (float& v : x) {
        if (kind == kConstant) v = 0.75f;
        if (kind == kLargeMean) v = 100 + v * 1e-3f;
        if (kind == kSpread) v = v * float(std::pow(10.0, 6 * std::fmod(std::abs(v) * 1000, 1.0)));
    }
    return x;
}

template <class Got>
double relative_error(const Got& got, const std::vector<double>& want) {
    double error = 0, size = 0;
    for (size_t i = 0; i < want.size(); ++i)
        error += std::pow(got[i] - want[i], 2), size += want[i] * want[i];
    return std::sqrt(error / size);
}

std::unique_ptr<Backend> cpu(int threads, ConvMethod conv, Precision precision) {
    auto backend = make_backend("cpu", {.threads = threads, .conv = conv, .precision = precision});
    if (precision == Precision::kFp32) return backend;
    return std::make_unique<ThroughDevice>(std::move(backend));
}
std::unique_ptr<Backend> winograd(int threads, Precision precision = Precision::kFp32) {
    return cpu(threads, ConvMethod::kWinograd, precision);
}

constexpr Precision kPrecisions[] = {Precision::kFp32, Precision::kBf16};
double stored(Precision precision) { return precision == Precision::kBf16 ? 0x1p-8 : 0; }

}  // namespace

TEST_CASE("Winograd's forward, grad_x and grad_w are within 5e-6 of the formula in double") {
    for (Precision precision : kPrecisions) {
        auto backend = winograd(2, precision);
        const double bound = kBound + stored(precision);
        for (const Case& c : kCases)
            for (Input kind : {kRandom, kConstant, kLargeMean, kSpread}) {
                if (kind != kRandom && c.K * c.x.C > 5000) continue;  // the formula takes its time
                CAPTURE(cat(name_of(precision), " x ", c.x.text(), " to ", c.K, ", ", c.size, "x",
                            c.size, " stride ", c.stride, " pad ", c.pad_h, "x", c.pad_w, " input ",
                            int(kind)));
                const Window window = c.window();
                const Shape ws = c.filters(), ys = reference::conv_shape(c.x, ws, window);
                auto x = rounded(fill(c.x.elems(), 1, kind), precision);
                auto w = rounded(random_floats(ws.elems(), 2), precision);
                auto dy = rounded(fill(ys.elems(), 3, kind), precision);
                const reference::Array X(c.x, x), W(ws, w), DY(ys, dy);

                Guarded y(ys.elems()), dx(c.x.elems()), dw(ws.elems(), 0.0f);
                backend->conv2d(view(x, c.x), view(w, ws), nullptr, window, false, view(y, ys));
                const auto want_y = reference::conv2d(X, W, {}, window, false).v;
                CHECK(relative_error(y.span(), want_y) <= bound);
                backend->conv2d_grad_x(view(dy, ys), view(w, ws), window, nullptr, view(dx, c.x));
                const auto want_dx = reference::conv2d_grad_x(DY, W, window, c.x, {}).v;
                CHECK(relative_error(dx.span(), want_dx) <= bound);
                auto twice = want_dx;
                for (double& v : twice) v *= 2;
                backend->conv2d_grad_x(view(dy, ys), view(w, ws), window, nullptr, view(dx, c.x),
                                       true);
                CHECK(relative_error(dx.span(), twice) <= bound);
                backend->conv2d_grad_w(view(x, c.x), view(dy, ys), window, view(dw, ws), nullptr);
                const auto want_dw = reference::conv2d_grad_w(X, DY, window, ws).v;
                CHECK(relative_error(dw.span(), want_dw) <= kBound);
                twice = want_dw;
                for (double& v : twice) v *= 2;
                backend->conv2d_grad_w(view(x, c.x), view(dy, ys), window, view(dw, ws), nullptr);
                CHECK(relative_error(dw.span(), twice) <= kBound);
            }
    }
}

TEST_CASE("Winograd's epilogue adds the bias, cuts at zero and applies the mask") {
    for (const auto& [precision, size] : {std::pair(Precision::kFp32, 3),
                                          {Precision::kFp32, 5},
                                          {Precision::kBf16, 3},
                                          {Precision::kBf16, 5}}) {
        auto backend = winograd(2, precision);
        auto direct = cpu(2, ConvMethod::kDirect, precision);
        const Window window = Window::square(size, 1, size / 2);
        const Shape xs{2, 7, 6, 19}, ws{37, size, size, 19}, ys{2, 7, 6, 37};
        std::vector<float> x = random_floats(xs.elems(), 1), w = random_floats(ws.elems(), 2);
        std::vector<float> b = random_floats(37, 3), dy = random_floats(ys.elems(), 4);
        std::vector<float> want(ys.elems()), want_dx(xs.elems());
        Guarded y(ys.elems()), dx(xs.elems());
        direct->conv2d(view(x, xs), view(w, ws), b.data(), window, true, view(want, ys));
        backend->conv2d(view(x, xs), view(w, ws), b.data(), window, true, view(y, ys));
        direct->conv2d_grad_x(view(dy, ys), view(w, ws), window, view(x, xs), view(want_dx, xs));
        backend->conv2d_grad_x(view(dy, ys), view(w, ws), window, view(x, xs), view(dx, xs));
        // Sums of 9·19 or more products, each side off by its own rounding, Winograd's eight times.
        const int taps = size * size;
        const double twice = 2 * stored(precision);  // stored by both
        const auto largest = [](const auto& v) {
            return std::abs(*std::ranges::max_element(v, {}, [](float f) { return std::abs(f); }));
        };
        CHECK_CLOSE(y.span(), want, 9 * sum_tolerance(taps * 19) + twice * largest(want));
        CHECK_CLOSE(dx.span(), want_dx, 9 * sum_tolerance(taps * 37) + twice * largest(want_dx));
        for (size_t i = 0; i < x.size(); ++i)
            if (x[i] <= 0) CHECK(dx.data()[i] == 0);
    }
}

TEST_CASE("Winograd gives the same bits in every run, on any number of threads") {
    // dw of the last has several parts.
    const Case cases[] = {{{3, 13, 12, 20}, 40, 1, 1},
                          {{2, 14, 14, 140}, 160, 1, 1},
                          {{2, 9, 8, 20}, 40, 2, 2, 5},
                          {{16, 32, 32, 16}, 32, 1, 1}};
    for (const Case& c : cases) {
        const Window window = c.window();
        const Shape ws = c.filters(), ys = reference::conv_shape(c.x, ws, window);
        std::vector<float> x = random_floats(c.x.elems(), 1), w = random_floats(ws.elems(), 2);
        std::vector<float> dy = random_floats(ys.elems(), 3), want;
        for (int threads : {1, 1, 2, 3, 24}) {
            auto backend = winograd(threads);
            std::vector<float> y(ys.elems()), dw(ws.elems(), 0.0f);
            backend->conv2d(view(x, c.x), view(w, ws), nullptr, window, false, view(y, ys));
            backend->conv2d_grad_w(view(x, c.x), view(dy, ys), window, view(dw, ws), nullptr);
            y.insert(y.end(), dw.begin(), dw.end());
            if (want.empty()) want = y;
            CHECK(y == want);
        }
    }
}

TEST_CASE("Winograd of no images writes nothing and leaves dw as it is") {
    auto backend = winograd(2);
    std::vector<float> w = random_floats(2 * 9 * 3, 1);
    Guarded dw(w);
    const Window window = Window::square(3, 1, 1);
    backend->conv2d({nullptr, 0, 5, 5, 3}, view(w, {2, 3, 3, 3}), nullptr, window, true,
                    {nullptr, 0, 5, 5, 2});
    backend->conv2d_grad_w({nullptr, 0, 5, 5, 3}, {nullptr, 0, 5, 5, 2}, window,
                           view(dw, {2, 3, 3, 3}), nullptr);
    CHECK(std::vector<float>(dw) == w);
}

}  // namespace convoy
