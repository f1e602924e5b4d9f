// conv2d.cpp — convolutions as products with the matrix of patches (gemm.h), or where that is
// faster by Winograd's method (winograd.h).
//
//   conv2d         y  = patches(x) · wᵀ          rows n,p,q · depth r,s,c · columns k
//   conv2d_grad_x  dx = patches(dy) · w          for each of the stride_h·stride_w phases:
//   conv2d_grad_w  dw += dyᵀ · patches(x)
//
// A phase (a, b) of grad_x is the pixels h = a + stride·i, w = b + stride·j of dx. Only the filter
// rows r with (a + pad − r) divisible by the stride read them, from p = i + (a + pad − r)/stride:
// seen from i, a convolution of stride 1 over dy with the filter rows r in falling order.
#include <algorithm>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/winograd.h"
#include "kernels/shapes.h"

namespace convoy {

namespace {

Patches patches_of(Tensor x, Window window, Tensor y) {
    return {x.floats(),
            x.N,
            x.H,
            x.W,
            x.C,
            window.size_h,
            window.size_w,
            -window.pad_h,
            -window.pad_w,
            window.stride_h,
            window.stride_w,
            y.H,
            y.W};
}

// The filter rows (or columns) that meet the pixels ≡ phase modulo the stride.
struct PhaseTaps {
    int count = 0;    // how many
    int highest = 0;  // the first in falling order; the others follow at −stride
    int start = 0;  // dy row of pixel i = 0 under `highest`: dy rows i + start, i + start + 1, …
    PhaseTaps(int phase, int size, int stride, int pad) {
        for (int r = size - 1; r >= 0; --r)
            if ((phase + pad - r) % stride == 0) {
                if (count++ == 0) highest = r, start = (phase + pad - r) / stride;
            }
    }
};

}  // namespace

bool CpuBackend::use_winograd(const Patches& x, int K) const {
    if (!winograd_can(x)) return false;
    return conv_ == ConvMethod::kWinograd || (conv_ == ConvMethod::kAuto && winograd_pays(x, K));
}

void CpuBackend::conv2d(Tensor x, Tensor w, const float* b, Window window, bool relu, Tensor y,
                        const Moments* of_y) {
    check_conv2d(x, w, window, y);
    const Patches patches = patches_of(x, window, y);
    const ptrdiff_t row = y.C, line = row * y.W, filter = ptrdiff_t(w.H) * w.W * w.C;
    const Epilogue epilogue{b, relu, nullptr};
    if (use_winograd(patches, w.N)) {
        std::vector<ptrdiff_t> taps(size_t(w.H) * w.W);
        for (size_t t = 0; t < taps.size(); ++t) taps[t] = ptrdiff_t(t) * w.C;
        winograd_conv(cpu_, patches, {w.floats(), 1, filter, int(taps.size()), taps.data()}, w.N,
                      y.floats(), epilogue);
    } else {
        multiply_patches(cpu_, patches, {w.floats(), 1, filter}, w.N,
                         {y.floats(), line * y.H, line, row}, epilogue);
    }
    if (of_y) moments(y, *of_y);
}

void CpuBackend::conv2d_grad_x(Tensor dy, Tensor w, Window window, Tensor mask, Tensor dx) {
    check_conv2d(dx, w, window, dy);
    check_mask(mask, dx);
    const float* signs = mask.floats();
    const ptrdiff_t pixel = dx.C, line = pixel * dx.W;
    for (int a = 0; a < std::min(window.stride_h, dx.H); ++a)
        for (int b = 0; b < std::min(window.stride_w, dx.W); ++b) {
            const PhaseTaps rows(a, window.size_h, window.stride_h, window.pad_h);
            const PhaseTaps cols(b, window.size_w, window.stride_w, window.pad_w);
            std::vector<ptrdiff_t> taps;
            for (int r = 0; r < rows.count; ++r)
                for (int s = 0; s < cols.count; ++s)
                    taps.push_back((ptrdiff_t(rows.highest - r * window.stride_h) * w.W +
                                    (cols.highest - s * window.stride_w)) *
                                   w.C);
            const Patches patches{dy.floats(),
                                  dy.N,
                                  dy.H,
                                  dy.W,
                                  dy.C,
                                  rows.count,
                                  cols.count,
                                  rows.start,
                                  cols.start,
                                  1,
                                  1,
                                  (dx.H - a + window.stride_h - 1) / window.stride_h,
                                  (dx.W - b + window.stride_w - 1) / window.stride_w};
            const RightSide filters{w.floats(), ptrdiff_t(w.H) * w.W * w.C, 1,
                                    std::max(1, int(taps.size())), taps.data()};
            if (use_winograd(patches, dx.C) && window.stride_h == 1 && window.stride_w == 1) {
                winograd_conv(cpu_, patches, filters, dx.C, dx.floats(), {nullptr, false, signs});
                return;
            }
            multiply_patches(cpu_, patches, filters, dx.C,
                             {dx.floats() + a * line + b * pixel, line * dx.H,
                              line * window.stride_h, pixel * window.stride_w},
                             {nullptr, false, signs ? signs + a * line + b * pixel : nullptr});
        }
}

void CpuBackend::conv2d_grad_w(Tensor x, Tensor dy, Window window, Tensor dw, float* db) {
    check_conv2d(x, dw, window, dy);
    const Patches patches = patches_of(x, window, dy);
    if (use_winograd(patches, dy.C))
        winograd_grad_w(cpu_, dy.floats(), dy.C, patches, dw.floats());
    else
        multiply_rows(cpu_, dy.floats(), dy.C, patches, dw.floats());
    if (db) add_column_sums(cpu_, dy.floats(), int64_t(dy.N) * dy.H * dy.W, dy.C, db);
}

}  // namespace convoy
