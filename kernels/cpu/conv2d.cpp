// conv2d.cpp — convolutions as products with the matrix of patches (gemm.h), or by Winograd's
// method if that is faster (winograd.h). Depthwise convolutions are in depthwise.cpp.
//
//   conv2d         y  = patches(x) · wᵀ          rows n,p,q · depth r,s,c · columns k
//   conv2d_grad_x  dx = patches(dy) · w          for each of the stride_h·stride_w phases:
//   conv2d_grad_w  dw += dyᵀ · patches(x)
//
// Phase (a, b) of grad_x computes the pixels h = a + stride·i, w = b + stride·j of dx. Only some
// filter rows r contribute (TapsOfPixel), from p = i + (a + pad − r·dilation)/stride. As a function
// of i this is a convolution of stride 1 over dy, with descending filter rows r.
//
// Space to depth: if each s×s block of the padded x becomes one pixel of s·s·C channels, a window
// of stride s becomes a window of stride 1 with ⌈R/s⌉ rows. AlexNet's 11x11 window of stride 4 on 3
// channels is 3x3 on 48 channels, for which Winograd's method works.
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
    a.dilation_h = window.dilation_h, a.dilation_w = window.dilation_w;
    return a;
}

constexpr size_t kDeepElems = 4 << 20;  // of space_to_depth at a time: they stay in the L3 cache

// The patches after space_to_depth, without their image yet. None if the strides differ, or are 1.
template <class T>
PatchesOf<T> deep_patches(Tensor x, Window window, Tensor y) {
    const int s = window.stride_h, size = ceil_div(window.size_h, s);
    if (s == 1 || window.dilated() || window.stride_w != s || window.size_w != window.size_h)
        return {};
    const Shape image{1, y.H + size - 1, y.W + size - 1, s * s * x.C};
    const int images = int(std::clamp<size_t>(kDeepElems / image.elems(), 1, std::max(x.N, 1)));
    PatchesOf<T> a{nullptr, images, image.H, image.W, image.C};
    a.R = a.S = size, a.P = y.H, a.Q = y.W;
    return a;
}

// Calls f(pixel of x, pixel of the blocks, n) for runs of n ≤ s pixels that are neighbours in both:
// x of H×W pixels, padded at the top and left, as rows×cols blocks of s·s pixels.
template <class F>
void for_blocks(ThreadPool& pool, Tensor x, int s, int pad_h, int pad_w, int rows, int cols,
                F&& f) {
    pool.for_each(x.N * rows, [&](int task, int) {
        const int top = task % rows * s - pad_h, last_row = std::min(s, x.H - top);
        for (int col = 0; col < cols; ++col) {
            const int left = col * s - pad_w, first = std::max(0, -left);
            for (int a = std::max(0, -top); a < last_row; ++a)
                if (const int n = std::min(s, x.W - left) - first; n > 0)
                    f((ptrdiff_t(task / rows) * x.H + top + a) * x.W + left + first,
                      ((ptrdiff_t(task) * cols + col) * s + a) * s + first, n);
        }
    });
}

// Stores x as blocks. Pixels outside of x are 0.
template <class T>
const T* space_to_depth(Cpu& cpu, Tensor x, int s, int pad_h, int pad_w, int rows, int cols,
                        Slot slot) {
    const size_t elems = size_t(x.N) * rows * cols * s * s * x.C;
    T* to = reinterpret_cast<T*>(cpu.shared.get(slot, elems));
    cpu.pool.for_ranges(elems, 1 << 16,
                        [&](size_t begin, size_t end) { std::fill(to + begin, to + end, T(0)); });
    for_blocks(cpu.pool, x, s, pad_h, pad_w, rows, cols, [&](ptrdiff_t from, ptrdiff_t at, int n) {
        std::copy_n(elements<T>(x) + from * x.C, n * x.C, to + at * x.C);
    });
    return to;
}

// Calls f(patches, n) with the patches of some images of x at a time, which begin with image n.
template <class T, class F>
void for_deep_images(Cpu& cpu, PatchesOf<T> patches, Tensor x, Window window, F&& f) {
    for (int n = 0, most = patches.N; n < x.N; n += most) {
        patches.N = std::min(most, x.N - n);
        patches.x =
            space_to_depth<T>(cpu, x.images(n, n + patches.N), window.stride_h, window.pad_h,
                              window.pad_w, patches.H, patches.W, kSlotImages);
        f(patches, n);
    }
}

}  // namespace

template <class T>
bool CpuBackend::use_winograd(const PatchesOf<T>& x, int K) const {
    const bool can = (x.R == 3 || x.R == 5) && x.S == x.R && x.step_h == 1 && x.step_w == 1 &&
                     x.dilation_h == 1 && x.dilation_w == 1;
    if (!can || conv_ == ConvMethod::kDirect) return false;
    if (conv_ == ConvMethod::kWinograd) return true;
    if (std::is_same_v<T, Bf16> && cpu_.micro.pairs && cpu_.micro.pairs->amx) return false;
    const Tiles tiles(x);
    const double outputs = double(tiles.out) * tiles.out * std::max(1, tiles.count);
    const double used = double(x.rows()) / outputs;
    return x.C >= 16 && K >= 16 && used > 0.4 && tiles.count >= 16;
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
        if constexpr (std::is_same_v<X, Y>) {
            const auto by_winograd = [&](const PatchesOf<X>& image, const X* weights, X* to) {
                std::vector<ptrdiff_t> taps(size_t(image.R) * image.S);
                for (size_t t = 0; t < taps.size(); ++t) taps[t] = ptrdiff_t(t) * image.C;
                const RightSideOf<X> filters{weights, 1, image.depth(), int(taps.size()),
                                             taps.data()};
                winograd_conv(cpu_, image, filters, w.N, to, epilogue);
            };
            if (use_winograd(patches, w.N))
                return by_winograd(patches, elements<X>(w), elements<X>(y));
            if (const auto deep = deep_patches<X>(x, window, y); use_winograd(deep, w.N)) {
                const X* weights =
                    space_to_depth<X>(cpu_, w, window.stride_h, 0, 0, deep.R, deep.S, kSlotFilters);
                return for_deep_images(cpu_, deep, x, window, [&](const auto& images, int n) {
                    by_winograd(images, weights, elements<X>(y) + n * line * y.H);
                });
            }
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
        // Some pixels may be in no window, or between its taps.
        const bool gaps = step_h > w.H || step_w > w.W || (window.dilated() && step_h * step_w > 1);
        if (gaps && add && mask) activate_grad(mask, dx, {});
        if (gaps && !add)
            cpu_.pool.for_ranges(dx.elems(), 1 << 16, [&](size_t begin, size_t end) {
                std::fill(to + begin, to + end, X(0));
            });
        for (int a = 0; a < std::min(step_h, dx.H); ++a)
            for (int b = 0; b < std::min(step_w, dx.W); ++b) {
                const TapsOfPixel rows(a, w.H, step_h, window.pad_h, window.dilation_h);
                const TapsOfPixel cols(b, w.W, step_w, window.pad_w, window.dilation_w);
                std::vector<ptrdiff_t> taps;
                for (int r = rows.count - 1; r >= 0; --r)
                    for (int s = cols.count - 1; s >= 0; --s)
                        taps.push_back(rows.tap(r) * filter_row + cols.tap(s) * w.C);
                if (taps.empty()) continue;
                PatchesOf<Y> patches{elements<Y>(dy), dy.N, dy.H, dy.W, dy.C};
                patches.R = rows.count, patches.S = cols.count;
                patches.h0 = rows.read_for(rows.count - 1);
                patches.w0 = cols.read_for(cols.count - 1);
                patches.dilation_h = rows.shift, patches.dilation_w = cols.shift;
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
        if (const auto deep = deep_patches<X>(x, window, dy); use_winograd(deep, dy.C)) {
            const size_t elems = size_t(dy.C) * deep.depth();
            float* sums = cpu_.shared.get(kSlotFilters, elems);
            std::fill_n(sums, elems, 0.0f);
            for_deep_images(cpu_, deep, x, window, [&](const auto& images, int n) {
                winograd_grad_w(cpu_, from + n * ptrdiff_t(dy.shape().row_elems()), dy.C, images,
                                sums);
            });
            float* to = dw.floats();
            return for_blocks(cpu_.pool, dw, window.stride_h, 0, 0, deep.R, deep.S,
                              [&](ptrdiff_t at, ptrdiff_t block, int n) {
                                  for (int i = 0; i < n * dw.C; ++i)
                                      to[at * dw.C + i] += sums[block * dw.C + i];
                              });
        }
        multiply_rows(cpu_, from, dy.C, patches, dw.floats());
    });
}

}  // namespace convoy
