// check_ops.h — ops on activations in any precision. Convolutions and linear layers are compared
// with the formula in double of the rounded inputs: products of rounded numbers are exact, so the
// tolerance is that of the sums in fp32 and, in bf16, of the stored activations.
#pragma once

#include "tests/reference.h"
#include "tests/through_device.h"

namespace convoy {

inline const ConvCase kConvCases[] = {
    {{1, 1, 1, 1}, 1, Window::square(1)},
    {{2, 5, 7, 3}, 5, Window::square(3, 1, 1)},
    {{1, 6, 6, 33}, 35, Window::square(3, 1, 1)},
    {{1, 7, 9, 5}, 4, Window::square(3, 1, 2)},
    {{2, 9, 7, 20}, 24, Window::square(3, 2, 1)},  // chunks of four floats, not of eight
    {{2, 9, 7, 24}, 16, Window::square(3, 2, 1)},  // of eight
    {{2, 8, 8, 8}, 16, Window::square(1, 2, 0)},   // three of four pixels meet no filter
    {{3, 6, 5, 40}, 70, Window::square(1)},
    {{1, 9, 13, 136}, 72, Window::square(1)},  // wide tiles, and more than one
    {{1, 35, 31, 3}, 18, Window::square(11, 4, 2)},
    {{1, 9, 8, 20}, 33, Window::square(5, 1, 2)},
    {{1, 8, 12, 6}, 7, Window{3, 5, 2, 3, 1, 0}},       // rectangular in everything
    {{2, 6, 6, 4}, 3, Window{2, 4, 1, 2, 1, 3}},        // more padding than half the window
    {{1, 3, 3, 4}, 6, Window::square(3, 3, 0)},         // one output
    {{2, 8, 7, 5}, 6, Window{4, 2, 1, 2, 1, 0, 1, 1}},  // more padding at the end
    {{1, 11, 7, 8}, 136, Window::square(2, 3, 0)},      // gaps between the windows
    {{1, 10, 11, 16}, 24, Window::square(3, 3, 1)},     // nine kinds of pixels in grad_x
    {{1, 2, 1, 24}, 16, Window::square(3, 3, 2)},       // a stride larger than the image
    {{2, 4, 5, 8}, 16, Window{3, 2, 2, 1, 7, 6}},       // patches of padding alone
    {{1, 30, 30, 4}, 66, Window::square(3, 1, 1)},      // several blocks of rows
    {{1, 4, 4, 300}, 34, Window::square(3, 1, 1)},      // several blocks of depth
    {{1, 70, 3, 8}, 8, Window{65, 1, 2, 1, 30, 0}},     // more rows than a word has bits
    // dilated; with strides of which none, some or all divide the dilation
    {{2, 9, 7, 24}, 16, Window{3, 3, 1, 1, 2, 2, 0, 0, 2, 2}},
    {{1, 6, 6, 300}, 34, Window{3, 3, 1, 1, 3, 3, 0, 0, 3, 3}},  // blocks of depth end in a tap
    {{2, 12, 17, 5}, 7, Window{3, 2, 2, 3, 1, 0, 1, 0, 2, 4}},
    {{1, 13, 12, 8}, 136, Window{4, 3, 4, 2, 5, 4, 0, 0, 6, 3}},
    {{1, 7, 9, 3}, 5, Window{2, 5, 1, 1, 4, 9, 0, 0, 7, 5}},  // most taps in the padding
    {{1, 30, 5, 8}, 66, Window{3, 1, 1, 1, 2, 0, 0, 0, 2, 4}},
    {{2, 5, 6, 8}, 8, Window{1, 1, 2, 2, 0, 0, 0, 0, 3, 2}},  // of a single tap
};
inline const ConvCase kDepthwiseCases[] = {
    {{1, 1, 1, 2}, 2, Window::square(1), true},
    {{2, 5, 7, 3}, 3, Window::square(3, 1, 1), true},
    {{1, 9, 8, 33}, 33, Window::square(3, 2, 1), true},
    {{3, 6, 6, 36}, 36, Window::square(3, 1, 1), true},
    {{1, 23, 40, 20}, 20, Window::square(3, 1, 1), true},  // rows that are read in several pieces
    {{1, 8, 12, 6}, 6, Window{3, 5, 2, 3, 1, 0}, true},
    {{2, 6, 6, 4}, 4, Window{2, 4, 1, 2, 1, 3}, true},
    {{1, 10, 10, 5}, 5, Window::square(2, 5, 0), true},
    {{1, 7, 6, 4}, 4, Window{4, 3, 2, 2, 1, 0, 1, 1}, true},
    {{1, 2, 3, 40}, 40, Window::square(7, 1, 3), true},  // a window larger than the image
    {{2, 9, 8, 36}, 36, Window{3, 3, 1, 1, 2, 2, 0, 0, 2, 2}, true},
    {{1, 14, 41, 20}, 20, Window{3, 3, 2, 2, 3, 3, 0, 0, 3, 3}, true},
    {{1, 12, 17, 5}, 5, Window{3, 2, 2, 3, 1, 0, 1, 0, 2, 4}, true},
    {{1, 3, 4, 8}, 8, Window{2, 5, 1, 1, 4, 9, 0, 0, 7, 5}, true},
};

inline std::vector<float> rounded(std::vector<float> x, Precision precision) {
    for (float& v : x) v = reference::rounded(v, precision);
    return x;
}

// Each stored number may be off by `arithmetic`, which is the error of the op's own sums. In bf16
// it may also be off by half a unit of its last bit, 2⁻⁸ of its size.
template <class Got, class Want>
void check_stored(const Got& got, const Want& want, double arithmetic, Precision precision,
                  const std::string& what) {
    if (precision != Precision::kBf16) return check_close(got, want, arithmetic, what);
    REQUIRE(std::size(got) == std::size(want));
    std::vector<double> off(std::size(want));
    for (size_t i = 0; i < off.size(); ++i) {
        const double error = std::abs(double(got[i]) - double(want[i]));
        off[i] = error <= arithmetic + 0x1p-8 * std::abs(double(want[i])) ? 0 : error;
    }
    check_close(off, std::vector<double>(off.size()), 0.0, what);
}

// Relative error of a product of two rounded numbers: twice half a unit of the last bit.
inline double product_tolerance(Precision precision) {
    return precision == Precision::kTf32 ? 0x1p-10 : 0x1p-7;
}

// What storing a result as bf16 may cost: half a unit of the last of 8 bits.
inline double storage_tolerance(Precision precision, const std::vector<double>& want) {
    double largest = 0;
    for (double v : want) largest = std::max(largest, std::abs(v));
    return precision == Precision::kBf16 ? largest * 0x1p-8 : 0;
}

// Each backend, with direct products in all cases; test_winograd.cpp has the other method.
inline std::unique_ptr<Backend> each_direct(int threads, Precision precision = Precision::kFp32) {
    auto backend = each_backend(threads, precision);
    if (backend->name() != "cpu") return backend;
    backend = make_backend(
        "cpu", {.threads = threads, .conv = ConvMethod::kDirect, .precision = precision});
    if (precision == Precision::kFp32) return backend;
    return std::make_unique<ThroughDevice>(std::move(backend));
}

// Runs the test case in fp32 and in bf16, on each backend.
inline void in_both(const auto& check, int threads = 2) {
    for (const Precision precision : {Precision::kFp32, Precision::kBf16})
        SUBCASE(name_of(precision)) { check(*each_backend(threads, precision), precision); }
}

// All three passes, with and without bias, relu, mask, sum and gradient of the bias. linear: as a
// linear layer, which gets x in this shape.
inline void check_conv(Backend& backend, Precision precision, const ConvCase& c,
                       const Shape* linear = nullptr) {
    const Window window = c.window;
    const Shape xs = c.x, ws{c.K, window.size_h, window.size_w, c.depthwise ? 1 : xs.C};
    const Shape ys = reference::conv_shape(xs, ws, window);
    CAPTURE(cat(linear ? "linear " : "", name_of(precision), " x ", xs.text(), " w ", ws.text(),
                " stride ", window.stride_h, "x", window.stride_w, " pad ", window.pad_h, "x",
                window.pad_w, " dilation ", window.dilation_h, "x", window.dilation_w));
    const Shape given = linear ? *linear : xs;
    std::vector<float> x = random_floats(xs.elems(), 1), w = random_floats(ws.elems(), 2);
    std::vector<float> b = random_floats(c.K, 3), dy = random_floats(ys.elems(), 4);
    const auto make_dense = [&](const std::vector<float>& filters) {
        if (!c.depthwise) return reference::Array(ws, filters);
        reference::Array all({c.K, ws.H, ws.W, xs.C});
        for (size_t i = 0; i < filters.size(); ++i)
            all.v[i * size_t(xs.C) + i / ws.row_elems()] = filters[i];
        return all;
    };
    const reference::Array X(xs, rounded(x, precision)), DY(ys, rounded(dy, precision)),
        W = make_dense(rounded(w, precision)), exact_w = make_dense(w);

    double terms = double(ws.row_elems()) + 1;
    for (const bool full : {false, true}) {
        const std::vector<float> bias = full ? b : std::vector<float>{};
        Guarded y(ys.elems());
        float* const b_or_none = full ? b.data() : nullptr;
        linear ? backend.linear(view(x, given), view(w, ws), b_or_none, full, view(y, ys))
               : backend.conv2d(view(x, xs), view(w, ws), b_or_none, window, full, view(y, ys));
        const auto want = reference::conv2d(X, W, bias, window, full);
        const double stored = storage_tolerance(precision, want.v);
        CHECK_CLOSE(y.span(), want.v, sum_tolerance(terms) + stored);
        if (precision == Precision::kFp32 || linear) continue;
        const auto exact = reference::conv2d({xs, x}, exact_w, bias, window, full);
        CHECK_CLOSE(y.span(), exact.v,
                    terms * product_tolerance(precision) + sum_tolerance(terms) + stored);
    }
    terms = double(c.depthwise ? 1 : ws.N) * ws.H * ws.W;
    for (std::vector<float> mask : {std::vector<float>{}, x}) {
        Guarded dx(xs.elems());
        const Tensor of = mask.empty() ? Tensor{} : view(mask, given);
        linear ? backend.linear_grad_x(view(dy, ys), view(w, ws), of, view(dx, given))
               : backend.conv2d_grad_x(view(dy, ys), view(w, ws), window, of, view(dx, xs));
        const auto want = reference::conv2d_grad_x(DY, W, window, xs, mask);
        CHECK_CLOSE(dx.span(), want.v, sum_tolerance(terms) + storage_tolerance(precision, want.v));
    }
    for (std::vector<float> mask : {std::vector<float>{}, random_floats(xs.elems(), 6)}) {
        if (c.depthwise || linear) break;
        Guarded dx(rounded(x, precision));
        backend.conv2d_grad_x(view(dy, ys), view(w, ws), window,
                              mask.empty() ? Tensor{} : view(mask, xs), view(dx, xs), true);
        auto want = reference::conv2d_grad_x(DY, W, window, xs, {}).v;
        for (size_t i = 0; i < want.size(); ++i)
            want[i] = mask.empty() || mask[i] > 0 ? want[i] + X.v[i] : 0;
        // In bf16 the product may be rounded before it is added.
        CHECK_CLOSE(dx.span(), want,
                    sum_tolerance(terms + 1) + 2 * storage_tolerance(precision, want));
    }
    const std::vector<float> dw0 = random_floats(w.size(), 5);
    Guarded dw(dw0), db(b), again(dw0);
    const auto grad_w = [&](Guarded& to, float* to_db) {
        linear ? backend.linear_grad_w(view(x, given), view(dy, ys), view(to, ws), to_db)
               : backend.conv2d_grad_w(view(x, xs), view(dy, ys), window, view(to, ws), to_db);
    };
    grad_w(dw, db.data());
    const auto dense = reference::conv2d_grad_w(X, DY, window, W.shape);
    std::vector<double> want(dw0.begin(), dw0.end());
    for (size_t i = 0; i < want.size(); ++i)
        want[i] += dense.v[c.depthwise ? i * size_t(xs.C) + i / ws.row_elems() : i];
    // In tf32 sums of what is not rounded.
    auto want_db =
        reference::column_sums(precision == Precision::kBf16 ? DY : reference::Array(ys, dy));
    for (int k = 0; k < c.K; ++k) want_db[k] += b[k];
    terms = double(ys.elems()) / c.K + 1;
    CHECK_CLOSE(dw.span(), want, sum_tolerance(terms));
    CHECK_CLOSE(db.span(), want_db, sum_tolerance(terms));
    grad_w(again, nullptr);
    CHECK(std::vector<float>(again) == std::vector<float>(dw));
}

// A linear layer on the pixels of x is the convolution of single pixels.
inline void check_linear_in(Backend& backend, Precision precision, const Shape& xs, int K) {
    const ConvCase rows{{xs.N, 1, 1, int(xs.row_elems())}, K, Window::square(1)};
    check_conv(backend, precision, rows, &xs);
}

}  // namespace convoy
