// conv2d.cpp — convolutions as products with the matrix of patches (gemm.h), or by Winograd's
// method if that is faster (winograd.h). Depthwise convolutions are in depthwise.cpp.
//
//   conv2d         y  = patches(x) · wᵀ          rows n,p,q · depth r,s,c · columns k
//   conv2d_grad_x  dx = patches(dy) · w          for each of the stride_h·stride_w phases:
//   conv2d_grad_w  dw += dyᵀ · patches(x)
//
// Phase (a, b) of grad_x computes the pixels h = a + stride·i, w = b + stride·j of dx. Only filter
// rows r with (a + pad − r) divisible by the stride contribute, from p = i + (a + pad − r)/stride.
// As a function of i this is a convolution of stride 1 over dy, with descending filter rows r.
#include <algorithm>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/winograd.h"
#include "kernels/shapes.h"

namespace convoy {

namespace {

template <class T>
PatchesOf<T> patches_of(Tensor x, Window window, Tensor y) {
    PatchesOf<T> a{elements<T>(x), x.N, x.H, x.W, x.C};
    a.R = window.size_h, a.S = window.size_w, a.h0 = -window.pad_h, a.w0 = -window.pad_w;
    a.step_h = window.stride_h, a.step_w = window.stride_w, a.P = y.H, a.Q = y.W;
    return a;
}

// The filter rows (or columns) that contribute to the pixels ≡ phase modulo the stride.
struct PhaseTaps {
    int count = 0;
    int highest = 0;  // the others follow in steps of −stride
    int start = 0;    // pixel i multiplies row i + start of dy by filter row `highest`
    PhaseTaps(int phase, int size, int stride, int pad) {
        for (int r = size - 1; r >= 0; --r)
            if ((phase + pad - r) % stride == 0 && count++ == 0)
                highest = r, start = (phase + pad - r) / stride;
    }
};

}  // namespace

template <class T>
bool CpuBackend::use_winograd(const PatchesOf<T>& x, int K) const {
    if (!winograd_can(x) || conv_ == ConvMethod::kDirect) return false;
    if (conv_ == ConvMethod::kWinograd) return true;
    if (std::is_same_v<T, Bf16> && cpu_.micro.pairs && cpu_.micro.pairs->amx) return false;
    return winograd_pays(x, K);
}

void CpuBackend::conv2d(Tensor x, Tensor w, const float* b, Window window, bool relu, Tensor y,
                        const Moments* of_y) {
    check_conv2d(x, w, window, y);
    if (is_depthwise(x, w)) {
        depthwise(x, w, b, window, relu, y);
        if (of_y) moments(y, *of_y);
        return;
    }
    const ptrdiff_t row = y.C, line = row * y.W, filter = ptrdiff_t(w.H) * w.W * w.C;
    with_product_types(x, y, [&]<class X, class Y>(X, Y) {
        const auto patches = patches_of<X>(x, window, y);
        const EpilogueOf<Y> epilogue{b, relu};
        if constexpr (std::is_same_v<X, Y>)
            if (use_winograd(patches, w.N)) {
                std::vector<ptrdiff_t> taps(size_t(w.H) * w.W);
                for (size_t t = 0; t < taps.size(); ++t) taps[t] = ptrdiff_t(t) * w.C;
                const RightSideOf<X> filters{elements<X>(w), 1, filter, int(taps.size()),
                                             taps.data()};
                return winograd_conv(cpu_, patches, filters, w.N, elements<Y>(y), epilogue);
            }
        multiply_patches(cpu_, patches, RightSideOf<X>{elements<X>(w), 1, filter}, w.N,
                         RowMapOf<Y>{elements<Y>(y), line * y.H, line, row}, epilogue);
    });
    if (of_y) moments(y, *of_y);
}

void CpuBackend::conv2d_grad_x(Tensor dy, Tensor w, Window window, Tensor mask, Tensor dx,
                               bool add) {
    check_conv2d(dx, w, window, dy);
    check_grad_x(dx, w, mask, add);
    if (is_depthwise(dx, w)) return depthwise_grad_x(dy, w, window, mask, dx);
    const int step_h = window.stride_h, step_w = window.stride_w;
    const ptrdiff_t pixel = dx.C, line = pixel * dx.W, filter_row = ptrdiff_t(w.W) * w.C;
    with_product_types(dy, dx, [&]<class Y, class X>(Y, X) {
        X* to = elements<X>(dx);
        if (!add && (step_h > w.H || step_w > w.W))  // some pixels are in no window
            cpu_.pool.for_ranges(dx.elems(), 1 << 16, [&](size_t begin, size_t end) {
                std::fill(to + begin, to + end, X(0));
            });
        for (int a = 0; a < std::min(step_h, dx.H); ++a)
            for (int b = 0; b < std::min(step_w, dx.W); ++b) {
                const PhaseTaps rows(a, w.H, step_h, window.pad_h);
                const PhaseTaps cols(b, w.W, step_w, window.pad_w);
                std::vector<ptrdiff_t> taps;
                for (int r = 0; r < rows.count; ++r)
                    for (int s = 0; s < cols.count; ++s)
                        taps.push_back((rows.highest - r * step_h) * filter_row +
                                       (cols.highest - s * step_w) * w.C);
                if (taps.empty()) continue;
                PatchesOf<Y> patches{elements<Y>(dy), dy.N, dy.H, dy.W, dy.C};
                patches.R = rows.count, patches.S = cols.count;
                patches.h0 = rows.start, patches.w0 = cols.start;
                patches.P = (dx.H - a + step_h - 1) / step_h;
                patches.Q = (dx.W - b + step_w - 1) / step_w;
                const RightSideOf<Y> filters{elements<Y>(w), filter_row * w.H, 1, int(taps.size()),
                                             taps.data()};
                const ptrdiff_t at = a * line + b * pixel;
                const EpilogueOf<X> epilogue{nullptr, false,
                                             mask ? elements<X>(mask) + at : nullptr, add};
                if constexpr (std::is_same_v<X, Y>)
                    if (step_h == 1 && step_w == 1 && use_winograd(patches, dx.C)) {
                        winograd_conv(cpu_, patches, filters, dx.C, to, epilogue);
                        continue;
                    }
                multiply_patches(cpu_, patches, filters, dx.C,
                                 RowMapOf<X>{to + at, line * dx.H, line * step_h, pixel * step_w},
                                 epilogue);
            }
    });
}

void CpuBackend::conv2d_grad_w(Tensor x, Tensor dy, Window window, Tensor dw, float* db) {
    check_conv2d(x, dw, window, dy);
    const bool own = is_depthwise(x, dw);
    if (own) depthwise_grad_w(x, dy, window, dw);
    with_product_types(x, x, [&]<class X>(X, auto) {
        const auto patches = patches_of<X>(x, window, dy);
        const X* from = elements<X>(dy);
        if (db) add_column_sums(cpu_, from, int64_t(dy.N) * dy.H * dy.W, dy.C, db);
        if (own) return;
        if (use_winograd(patches, dy.C))
            return winograd_grad_w(cpu_, from, dy.C, patches, dw.floats());
        multiply_rows(cpu_, from, dy.C, patches, dw.floats());
    });
}

}  // namespace convoy
