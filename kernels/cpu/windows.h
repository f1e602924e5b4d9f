// windows.h — which part of a window lies in the image, and which windows contain a pixel.
#pragma once

#include <algorithm>

#include "kernels/backend.h"
#include "kernels/cpu/micro.h"

namespace convoy {

// The part of the window at output (p, q) that lies in x, relative to the window's corner.
struct Corner {
    int h, w;
    PoolWindow inside;
    Corner(int p, int q, const Window& window, Tensor x)
        : h(p * window.stride_h - window.pad_h),
          w(q * window.stride_w - window.pad_w),
          inside{ptrdiff_t(x.W) * x.C, x.C,
                 std::max(0, -h),      std::min(window.size_h, x.H - h),
                 std::max(0, -w),      std::min(window.size_w, x.W - w),
                 window.size_w} {}
    // Offset of the corner in image n; it may lie outside of the image.
    ptrdiff_t start(int n, Tensor x) const {
        return (ptrdiff_t(n) * x.H + h) * inside.line + w * inside.pixel;
    }
};

// The output positions along one axis whose windows contain input position i: [first, last].
struct Covering {
    int first, last;
    Covering(int i, int size, int stride, int pad, int outputs)
        : first(i + pad < size ? 0 : (i + pad - size) / stride + 1),
          last(std::min((i + pad) / stride, outputs - 1)) {}
};
// The outputs whose windows contain pixel (h, w).
inline PoolGrad covering(int h, int w, const Window& window, Tensor dy) {
    const Covering rows(h, window.size_h, window.stride_h, window.pad_h, dy.H);
    const Covering cols(w, window.size_w, window.stride_w, window.pad_w, dy.W);
    return {ptrdiff_t(dy.W) * dy.C,
            dy.C,
            rows.first,
            rows.last + 1,
            cols.first,
            cols.last + 1,
            (h + window.pad_h) * window.size_w + w + window.pad_w,
            window.stride_h * window.size_w,
            window.stride_w};
}

}  // namespace convoy
