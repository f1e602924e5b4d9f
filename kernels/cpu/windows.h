// windows.h — which part of a window lies in the image, and which windows contain a pixel.
#pragma once

#include <algorithm>

#include "kernels/backend.h"
#include "kernels/cpu/micro.h"
#include "kernels/shapes.h"

namespace convoy {

// The part of the window at output (p, q) that lies in x, relative to the window's corner.
struct Corner {
    int h, w;
    PoolWindow inside;
    Corner(int p, int q, const Window& window, Tensor x)
        : h(p * window.stride_h - window.pad_h),
          w(q * window.stride_w - window.pad_w),
          inside{ptrdiff_t(x.W) * x.C * window.dilation_h,
                 ptrdiff_t(x.C) * window.dilation_w,
                 taps_before(std::max(0, -h), window.dilation_h),
                 std::min(window.size_h, taps_before(x.H - h, window.dilation_h)),
                 taps_before(std::max(0, -w), window.dilation_w),
                 std::min(window.size_w, taps_before(x.W - w, window.dilation_w)),
                 window.size_w} {}
    // Offset of the corner in image n; it may lie outside of the image.
    ptrdiff_t start(int n, Tensor x) const { return ((ptrdiff_t(n) * x.H + h) * x.W + w) * x.C; }
};

// The outputs whose windows contain pixel (h, w).
inline PoolGrad covering(int h, int w, const Window& window, Tensor dy) {
    const int size_w = window.size_w, i = h + window.pad_h, j = w + window.pad_w;
    const auto begin = [](int i, int size, int stride) {
        return i < size ? 0 : (i - size) / stride + 1;
    };
    const int p0 = begin(i, window.size_h, window.stride_h), q0 = begin(j, size_w, window.stride_w);
    const int p1 = std::min(i / window.stride_h + 1, dy.H);
    const int q1 = std::min(j / window.stride_w + 1, dy.W);
    const ptrdiff_t pixel = dy.C, line = pixel * dy.W;
    const int place_row = window.stride_h * size_w;
    return {line, pixel, p0, p1, q0, q1, i * size_w + j, place_row, window.stride_w};
}

}  // namespace convoy
