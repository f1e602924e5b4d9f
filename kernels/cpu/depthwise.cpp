// depthwise.cpp — convolutions in which channel k of y reads only channel k of x. Bound by memory.
// Vectors run along the channels, so w is first transposed.   Twin: kernels/cuda/depthwise.cu
#include <algorithm>

#include "kernels/cpu/columns.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/windows.h"

namespace convoy {
namespace {

template <class T>
const float* taps_first(Tensor w, float* to) {
    const T* from = elements<T>(w);
    const int taps = w.H * w.W;
    for (int c = 0; c < w.N; ++c)
        for (int tap = 0; tap < taps; ++tap) to[tap * w.N + c] = *from++;
    return to;
}

// Writes the taps of `w` that lie in the image to `to` and returns the end of the list.
DepthwiseTap* list_taps(const PoolWindow& w, int channels, DepthwiseTap* to) {
    for (int r = w.row_begin; r < w.row_end; ++r)
        for (int s = w.col_begin; s < w.col_end; ++s)
            *to++ = {r * w.line + s * w.pixel, ptrdiff_t(r * w.size_w + s) * channels};
    return to;
}
// The taps that read pixel (h, w) of dx, for outputs that exist.
DepthwiseTap* list_taps(int h, int w, const Window& of, Tensor dy, DepthwiseTap* to) {
    const TapsOfPixel rows(h, of.size_h, of.stride_h, of.pad_h, of.dilation_h);
    const TapsOfPixel cols(w, of.size_w, of.stride_w, of.pad_w, of.dilation_w);
    for (int i = rows.begin(dy.H); i < rows.end(); ++i)
        for (int j = cols.begin(dy.W); j < cols.end(); ++j)
            *to++ = {(ptrdiff_t(rows.read_for(i)) * dy.W + cols.read_for(j)) * dy.C,
                     ptrdiff_t(rows.tap(i) * of.size_w + cols.tap(j)) * dy.C};
    return to;
}

// Calls f(run, first output) for all outputs of row `row` (counted over all images). Outputs whose
// windows lie inside the columns of x form one run. `taps` has room for a window.
template <class T, class F>
void over_runs(int row, Tensor x, const Window& window, Tensor y, DepthwiseTap* taps, F&& f) {
    const int inner = std::min(y.W, (window.pad_w + window.stride_w - 1) / window.stride_w);
    const int room = x.W + window.pad_w - window.extent_w();
    const int outer = room < 0 ? inner : std::clamp(room / window.stride_w + 1, inner, y.W);
    for (int q = 0, count; q < y.W; q += count) {
        count = q == inner && outer > inner ? outer - inner : 1;
        const Corner at(row % y.H, q, window, x);
        const DepthwiseTap* end = list_taps(at.inside, y.C, taps);
        f(DepthwiseRun<T>{static_cast<const T*>(x.data) + at.start(row / y.H, x),
                          ptrdiff_t(window.stride_w) * x.C, y.C, taps, int(end - taps), y.C, count},
          (ptrdiff_t(row) * y.W + q) * y.C);
    }
}

constexpr size_t kTapFloats = sizeof(DepthwiseTap) / sizeof(float);
DepthwiseTap* taps_in(float* scratch) { return reinterpret_cast<DepthwiseTap*>(scratch); }

}  // namespace

void CpuBackend::depthwise(Tensor x, Tensor w, const float* b, Window window, bool relu, Tensor y) {
    float* const* scratch = cpu_.for_threads(kTapFloats * size_t(w.H) * size_t(w.W));
    with_type(x.type, [&]<class T>(T) {
        T* to = elements<T>(y);
        const float* filter = taps_first<T>(w, cpu_.shared.get(kSlotB, w.elems()));
        const auto pass = cpu_.micro.passes(to).depthwise;
        cpu_.pool.for_each(y.N * y.H, [&](int row, int thread) {
            over_runs<T>(row, x, window, y, taps_in(scratch[thread]),
                         [&](const auto& run, ptrdiff_t at) {
                             pass(run, filter, b, relu, nullptr, to + at);
                         });
        });
    });
}

void CpuBackend::depthwise_grad_x(Tensor dy, Tensor w, Window window, Tensor mask, Tensor dx) {
    float* const* scratch = cpu_.for_threads(kTapFloats * size_t(w.H) * size_t(w.W));
    const int step = window.stride_w;
    with_type(dx.type, [&]<class T>(T) {
        const T *from = elements<T>(dy), *signs = elements<T>(mask);
        T* to = elements<T>(dx);
        const float* filter = taps_first<T>(w, cpu_.shared.get(kSlotB, w.elems()));
        const auto pass = cpu_.micro.passes(from).depthwise;
        // Pixels a stride apart form a run if no window is cut off: they have the same taps.
        const auto run_from = [&](int row, int q, DepthwiseTap* taps) {
            const int last = (q + window.pad_w) / step;  // column of dy, may exceed it
            const int count = q + window.pad_w < window.extent_w() - 1
                                  ? 1
                                  : std::clamp(dy.W - last, 1, (dx.W - 1 - q) / step + 1);
            const ptrdiff_t at = (ptrdiff_t(row) * dx.W + q) * dx.C;
            const DepthwiseTap* end = list_taps(row % dx.H, q, window, dy, taps);
            pass({from + ptrdiff_t(row / dx.H) * dy.H * dy.W * dy.C, dy.C, ptrdiff_t(step) * dx.C,
                  taps, int(end - taps), dx.C, count},
                 filter, nullptr, false, signs ? signs + at : nullptr, to + at);
            return count;
        };
        cpu_.pool.for_each(dx.N * dx.H, [&](int row, int thread) {
            for (int phase = 0; phase < std::min(step, dx.W); ++phase)
                for (int q = phase; q < dx.W;)
                    q += step * run_from(row, q, taps_in(scratch[thread]));
        });
    });
}

void CpuBackend::depthwise_grad_w(Tensor x, Tensor dy, Window window, Tensor dw) {
    const int C = x.C, taps = dw.H * dw.W, rows = dy.N * dy.H;
    const int parts = std::min(rows, separate_sums(int64_t(rows) * dy.W, 256, dw.elems()));
    const size_t size = size_t(taps) * size_t(C);
    float* const* scratch = cpu_.for_threads(kTapFloats * size_t(taps));
    float* sums = cpu_.shared.get(kSlotParts, parts * size);
    with_type(x.type, [&]<class T>(T) {
        const T* from = elements<T>(dy);
        const auto pass = cpu_.micro.passes(from).depthwise_grad_w;
        cpu_.pool.for_each(parts, [&](int part, int thread) {
            float* own = sums + part * size;
            std::fill_n(own, size, 0.0f);
            const int end = int(int64_t(rows) * (part + 1) / parts);
            for (int row = int(int64_t(rows) * part / parts); row < end; ++row)
                over_runs<T>(row, x, window, dy, taps_in(scratch[thread]),
                             [&](const auto& run, ptrdiff_t at) { pass(run, from + at, own); });
        });
    });
    float* to = dw.floats();
    cpu_.pool.for_ranges(C, kLanes, [&](size_t begin, size_t end) {
        for (int part = 0; part < parts; ++part)
            for (int tap = 0; tap < taps; ++tap)
                for (size_t c = begin; c < end; ++c)
                    to[c * taps + tap] += sums[part * size + size_t(tap) * C + c];
    });
}

}  // namespace convoy
