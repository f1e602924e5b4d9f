// depthwise.cpp — convolutions in which each channel reads itself alone. Channels lie along the
// vectors; a task is a row of pixels. Bound by memory.   Twin: kernels/cuda/depthwise.cu
//
// A window is read in its own order, so w is first brought from channels × taps to taps × channels.
#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/windows.h"

namespace convoy {

namespace {

template <class T>
const float* taps_first(Tensor w, float* to) {
    const T* from = numbers<T>(w);
    const int taps = w.H * w.W;
    for (int c = 0; c < w.N; ++c)
        for (int tap = 0; tap < taps; ++tap) to[tap * w.N + c] = *from++;
    return to;
}

}  // namespace

void CpuBackend::depthwise(Tensor x, Tensor w, const float* b, Window window, bool relu, Tensor y) {
    with_type(x.type, [&]<class T>(T) {
        const T* from = numbers<T>(x);
        T* to = numbers<T>(y);
        const float* filter = taps_first<T>(w, cpu_.shared.get(kSlotB, w.elems()));
        const auto one = cpu_.micro.passes(from).depthwise;
        cpu_.pool.for_each(y.N * y.H, [&](int task, int) {
            const int n = task / y.H;
            for (int q = 0; q < y.W; ++q) {
                const Corner at(task % y.H, q, window, x);
                const PoolWindow& in = at.inside;
                const PoolGrad taps{in.line,    in.pixel, in.row_begin, in.row_end, in.col_begin,
                                    in.col_end, 0,        -in.size_w,   -1};
                one(from + at.start(n, x), taps, filter, b, relu, nullptr, y.C,
                    to + (ptrdiff_t(task) * y.W + q) * y.C);
            }
        });
    });
}

void CpuBackend::depthwise_grad_x(Tensor dy, Tensor w, Window window, Tensor mask, Tensor dx) {
    with_type(dx.type, [&]<class T>(T) {
        const T *from = numbers<T>(dy), *signs = numbers<T>(mask);
        T* to = numbers<T>(dx);
        const float* filter = taps_first<T>(w, cpu_.shared.get(kSlotB, w.elems()));
        const auto one = cpu_.micro.passes(from).depthwise;
        cpu_.pool.for_each(dx.N * dx.H, [&](int task, int) {
            const int n = task / dx.H;
            for (int q = 0; q < dx.W; ++q) {
                const ptrdiff_t at = (ptrdiff_t(task) * dx.W + q) * dx.C;
                one(from + ptrdiff_t(n) * dy.H * dy.W * dy.C, covering(task % dx.H, q, window, dy),
                    filter, nullptr, false, signs ? signs + at : nullptr, dx.C, to + at);
            }
        });
    });
}

// Parts of the rows have sums of their own, which are then added in order: the bits depend on the
// number of threads alone. Some outputs at a time, so that what all taps read stays in the cache.
void CpuBackend::depthwise_grad_w(Tensor x, Tensor dy, Window window, Tensor dw) {
    constexpr int kSome = 8;
    const int C = x.C, taps = dw.H * dw.W, rows = dy.N * dy.H;
    const int parts = std::min(rows, 4 * threads());
    const size_t size = size_t(taps) * size_t(C);
    float* sums = cpu_.shared.get(kSlotParts, parts * size);
    with_type(x.type, [&]<class T>(T) {
        const T *xs = numbers<T>(x), *dys = numbers<T>(dy);
        const auto add = cpu_.micro.passes(xs).depthwise_grad_w;
        const int step = window.stride_w;
        const auto add_outputs = [&](int row, int q0, float* to) {
            const Corner at(row % dy.H, 0, window, x);
            for (int r = at.inside.row_begin; r < at.inside.row_end; ++r)
                for (int s = 0; s < window.size_w; ++s) {
                    // Tap s of output q reads column q·step + w, which must lie in the image.
                    const int w = at.w + s;
                    const int first = std::max(q0, w < 0 ? (step - 1 - w) / step : 0);
                    const int end = std::min({q0 + kSome, dy.W, (x.W - 1 - w + step) / step});
                    if (first >= end || w >= x.W) continue;
                    const T* column = xs + ((ptrdiff_t(row / dy.H) * x.H + at.h + r) * x.W) * C +
                                      (ptrdiff_t(first) * step + w) * C;
                    add(column, ptrdiff_t(step) * C, dys + (ptrdiff_t(row) * dy.W + first) * C,
                        end - first, C, to + (r * window.size_w + s) * C);
                }
        };
        cpu_.pool.for_each(parts, [&](int part, int) {
            float* own = std::fill_n(sums + part * size, size, 0.0f) - size;
            const int end = int(int64_t(rows) * (part + 1) / parts);
            for (int row = int(int64_t(rows) * part / parts); row < end; ++row)
                for (int q = 0; q < dy.W; q += kSome) add_outputs(row, q, own);
        });
    });
    float* to = dw.floats();
    for (int part = 0; part < parts; ++part)
        for (int c = 0; c < C; ++c)
            for (int tap = 0; tap < taps; ++tap)
                to[c * taps + tap] += sums[part * size + size_t(tap) * C + c];
}

}  // namespace convoy
