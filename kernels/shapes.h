// shapes.h — how every backend checks the shapes of its arguments before it touches memory.
#pragma once

#include <algorithm>
#include <numeric>

#include "kernels/backend.h"

namespace convoy {

// dx must not be the mask: partial sums are stored in dx before the mask is read. mask may be null.
inline void check_mask(Tensor mask, Tensor dx) {
    ENSURE(!mask || mask.data != dx.data, "dx would be written over its mask, ",
           mask.shape().text());
    ENSURE(!mask || (mask.elems() == dx.elems() && mask.type == dx.type), "mask is ",
           mask.shape().text(), " of ", name_of(mask.type), ", dx is ", dx.shape().text(), " of ",
           name_of(dx.type));
}

inline void check_same(const char* name, Tensor x, const char* other_name, Tensor other) {
    ENSURE(x.shape() == other.shape(), name, " is ", x.shape().text(), ", ", other_name, " is ",
           other.shape().text());
    ENSURE(x.type == other.type, name, " holds ", name_of(x.type), ", ", other_name, " ",
           name_of(other.type));
}

inline void check_copy(Tensor to, Tensor from) {
    ENSURE(to.elems() == from.elems(), "from ", from.shape().text(), " to ", to.shape().text());
}

// The tensor with fewer channels corresponds to some channels of the other.
inline void check_channels(Tensor to, Tensor from, int first) {
    const int narrow = std::min(to.C, from.C), wide = std::max(to.C, from.C);
    ENSURE(to.N == from.N && to.H == from.H && to.W == from.W && first >= 0 &&
               first <= wide - narrow && to.type == from.type,
           "from ", from.shape().text(), " to ", to.shape().text(), ", channels from ", first);
}

// Each output channel k reads only channel k of x.
inline bool is_depthwise(Tensor x, Tensor w) { return w.C == 1 && x.C > 1; }

inline void check_conv2d(Tensor x, Tensor w, Window window, Tensor y) {
    ENSURE(window.size_h > 0 && window.size_w > 0 && window.stride_h > 0 && window.stride_w > 0 &&
               window.pad_h >= 0 && window.pad_w >= 0 && window.extra_h >= 0 &&
               window.extra_w >= 0 && window.dilation_h > 0 && window.dilation_w > 0,
           "window ", window.size_h, "x", window.size_w, " stride ", window.stride_h, "x",
           window.stride_w, " pad ", window.pad_h, "x", window.pad_w, " dilation ",
           window.dilation_h, "x", window.dilation_w);
    const bool depthwise = is_depthwise(x, w);
    ENSURE(w.H == window.size_h && w.W == window.size_w && x.C > 0 &&
               (depthwise ? w.N : w.C) == x.C && (!depthwise || x.type == y.type),
           "w is ", w.shape().text(), ", x is ", x.shape().text(), ", window is ", window.size_h,
           "x", window.size_w);
    ENSURE(x.H + 2 * window.pad_h + window.extra_h >= window.extent_h() &&
               x.W + 2 * window.pad_w + window.extra_w >= window.extent_w(),
           "x is ", x.shape().text(), ", window is ", window.extent_h(), "x", window.extent_w());
    const Shape want{x.N, window.out_h(x.H), window.out_w(x.W), w.N};
    ENSURE(y.shape() == want, "y is ", y.shape().text(), ", want ", want.text());
}

// The number of taps of a window, `dilation` apart, before its pixel n; none if n is negative.
constexpr int taps_before(int n, int dilation) {
    return dilation == 1 ? n : (n + dilation - 1) / dilation;
}

// Along one axis: the taps r of a window that read a pixel of x, and the outputs that they read it
// for. Tap first + i·step reads it for output − i·shift, i < count; that output may not exist.
// They are the taps for which (pixel + pad − r·dilation) is divisible by the stride, so two of them
// differ by stride / gcd, and their outputs by dilation / gcd.
struct TapsOfPixel {
    int step, shift, first, count, output;
    TapsOfPixel(int pixel, int size, int stride, int pad, int dilation)
        : step(stride / std::gcd(stride, dilation)), shift(dilation / std::gcd(stride, dilation)) {
        find(pixel + pad, size, stride, dilation);
    }
    // The same for another pixel, which is counted with the padding.
    constexpr void find(int pixel, int size, int stride, int dilation) {
        for (first = 0; first < size && pixel % stride != 0; pixel -= dilation) ++first;
        count = taps_before(size - first, step);
        output = pixel / stride;
    }
    // The i for which the output is one of 0 … outputs − 1.
    constexpr int begin(int outputs) const {
        return taps_before(std::max(0, output - outputs + 1), shift);
    }
    constexpr int end() const { return std::min(count, taps_before(output + 1, shift)); }
    constexpr int tap(int i) const { return first + i * step; }
    constexpr int read_for(int i) const { return output - i * shift; }
};

inline void check_linear(Tensor x, Tensor w, Tensor y) {
    ENSURE(w.H == 1 && w.W == 1 && size_t(w.C) == x.shape().row_elems(), "w is ", w.shape().text(),
           ", x is ", x.shape().text());
    const Shape want{x.N, 1, 1, w.N};
    ENSURE(y.shape() == want, "y is ", y.shape().text(), ", want ", want.text());
}

inline void check_grad_x(Tensor dx, Tensor w, Tensor mask, bool add) {
    check_mask(mask, dx);
    ENSURE(!add || !is_depthwise(dx, w), "dx += with a depthwise w");
}

inline void check_max_pool(Shape x, Window window, Shape y) {
    ENSURE(window.size_h > 0 && window.size_w > 0 && window.stride_h > 0 && window.stride_w > 0 &&
               !window.dilated(),
           "window is ", window.size_h, "x", window.size_w);
    ENSURE(window.pad_h >= 0 && window.pad_w >= 0 && 2 * window.pad_h <= window.size_h &&
               2 * window.pad_w <= window.size_w,
           "window ", window.size_h, "x", window.size_w, ", pad ", window.pad_h, "x", window.pad_w);
    ENSURE(window.size_h * window.size_w <= 256, "window is ", window.size_h, "x", window.size_w);
    const Shape want{x.N, window.out_h(x.H), window.out_w(x.W), x.C};
    ENSURE(y == want && y.H > 0 && y.W > 0, "x is ", x.text(), ", y is ", y.text(), ", want ",
           want.text());
}

// name: of y, which has the shape of x.
inline void check_scales(Tensor x, Tensor s, const char* name, Tensor y) {
    check_same("x", x, name, y);
    const Shape want{x.N, 1, 1, x.C};
    ENSURE(s.shape() == want && s.type == x.type, "s is ", s.shape().text(), ", x is ",
           x.shape().text());
}

inline void check_avg_pool(Tensor x, Tensor y) {
    ENSURE(x.N == y.N && x.C == y.C && x.H > 0 && x.W > 0 && y.H > 0 && y.W > 0, "x is ",
           x.shape().text(), ", y is ", y.shape().text());
}

inline void check_groups(Tensor x, GroupBounds groups) {
    ENSURE(groups.size() >= 1 && groups.front() == 0 && groups.back() == x.N &&
               std::is_sorted(groups.begin(), groups.end()),
           "x has ", x.N, " images, the bounds of the groups end at ",
           groups.empty() ? -1 : groups.back());
}

inline void check_norm_activation(Activation act, bool has_residual) {
    ENSURE(act.fits_norm() && (!has_residual || act.kind <= Activation::kRelu), "batch norm",
           has_residual ? " with a residual" : "", " cannot apply activation ", int(act.kind));
}

inline void check_batch_norm(Tensor x, Tensor residual, Activation act, Tensor y) {
    check_norm_activation(act, bool(residual));
    check_same("x", x, "y", y);
    if (residual) check_same("x", x, "residual", residual);
}

inline void check_batch_norm_grad(Tensor x, Tensor y, Tensor dy, Activation act, Tensor dx,
                                  Tensor dresidual) {
    check_norm_activation(act, bool(dresidual));
    check_same("x", x, "dy", dy);
    check_same("dx", dx, "dy", dy);
    if (dresidual && act) check_same("y", y, "dy", dy);
    if (dresidual) check_same("dresidual", dresidual, "dy", dy);
    ENSURE(dx.data != dy.data || dresidual.data != dy.data || !dy.data,
           "dx and dresidual are both dy");
}

inline void check_dropout(Tensor x, float p, std::span<const uint64_t> sample_ids) {
    ENSURE(p >= 0 && p < 1, "p is ", p);
    ENSURE(int(sample_ids.size()) == x.N, "x is ", x.shape().text(), ", sample_ids has ",
           sample_ids.size());
}

inline void check_labels(std::span<const int32_t> labels, Tensor logits) {
    ENSURE(logits.H == 1 && logits.W == 1 && int(labels.size()) == logits.N, "logits are ",
           logits.shape().text(), ", labels are ", labels.size());
    for (int n = 0; n < logits.N; ++n)
        ENSURE(labels[n] >= 0 && labels[n] < logits.C, "label of image ", n, " is ", labels[n],
               " of ", logits.C, " classes");
}

inline void check_loss(Tensor logits, std::span<const int32_t> labels, Tensor dlogits,
                       const MixedLabels& mixed) {
    check_labels(labels, logits);
    if (!mixed.second.empty()) check_labels(mixed.second, logits);
    ENSURE(mixed.first_part.size() == mixed.second.size(), mixed.second.size(),
           " second labels, parts are ", mixed.first_part.size());
    ENSURE(!dlogits || dlogits.shape() == logits.shape(), "logits are ", logits.shape().text(),
           ", dlogits are ", dlogits.shape().text());
}

}  // namespace convoy
