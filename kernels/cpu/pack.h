// pack.h — cuts matrices into blocks and copies them into the layout that the inner kernels read.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/cpu/gemm.h"

namespace convoy {

inline int ceil_div(int64_t a, int64_t b) { return int((a + b - 1) / b); }

// `count` cut into equal parts of at most `most`; all except the last are multiples of `grain`.
struct Cut {
    int count, parts, size;
    Cut(int count, int most, int grain)
        : count(count),
          parts(std::max(1, ceil_div(count, most))),
          size(ceil_div(ceil_div(count, parts), grain) * grain) {
        parts = std::max(1, ceil_div(count, size));
    }
    int begin(int part) const { return part * size; }
    int length(int part) const { return std::min(size, count - begin(part)); }
};

// Rows of a block in panels of nearly equal height ≤ mr: 64 rows are 13+13+13+13+12 instead of
// 14+14+14+14+8, so no kernel runs with few rows.
struct Panels {
    int rows, count;
    Panels(int rows, int mr) : rows(rows), count(std::max(1, ceil_div(rows, mr))) {}
    int begin(int panel) const { return int(int64_t(rows) * panel / count); }
    int height(int panel) const { return begin(panel + 1) - begin(panel); }
};

// 32 bytes at a time; for memcpy the compiler emits twice as many moves.
typedef float CopyVec __attribute__((vector_size(32), aligned(4), may_alias));
template <int n>
inline void copy_floats(float* to, const float* from) {
    static_assert(n % 8 == 0);
#pragma GCC unroll 4
    for (int i = 0; i < n; i += 8)
        *reinterpret_cast<CopyVec*>(to + i) = *reinterpret_cast<const CopyVec*>(from + i);
}

// Copies n floats, 16 at a time: up to 15 too many, but reads nothing at or after `stop`.
inline void copy_run(float* to, const float* from, int n, const float* stop) {
    if (stop - from >= n + kChunk - 1)
        for (int i = 0; i < n; i += kChunk) copy_floats<kChunk>(to + i, from + i);
    else
        std::memcpy(to, from, n * sizeof(float));
}

// One row of a panel; copies of a constant length need no call.
inline void copy_panel_row(float* to, const float* from, int columns) {
    if (columns == 32)
        copy_floats<32>(to, from);
    else if (columns == 16)
        copy_floats<16>(to, from);
    else
        std::memcpy(to, from, columns * sizeof(float));
}

// Walks the rows (n,p,q) of a patch matrix.
struct Row {
    int n, p, q;
    Row(const Patches& x, int64_t row)
        : n(int(row / (int64_t(x.P) * x.Q))), p(int(row / x.Q % x.P)), q(int(row % x.Q)) {}
    // q + count must not exceed x.Q.
    void skip(const Patches& x, int count) {
        if ((q += count) == x.Q) {
            q = 0;
            if (++p == x.P) p = 0, ++n;
        }
    }
};

// Copies elements [begin, end) of `count` neighbouring rows of the patch matrix, kRowStride apart.
// If count > 1, the windows must lie inside the columns. The next filter row overwrites excess.
inline void copy_patches(const Patches& x, const Row& at, int count, int begin, int end,
                         float* to) {
    const float* stop = x.x + ptrdiff_t(x.N) * x.H * x.W * x.C;
    const int run = x.S * x.C;  // of one filter row
    const ptrdiff_t step = ptrdiff_t(x.step_w) * x.C;
    const int w = at.q * x.step_w + x.w0;
    const int first = std::clamp(-w, 0, x.S) * x.C;      // [first, last) of the run is inside
    const int last = std::clamp(x.W - w, 0, x.S) * x.C;  // the image
    for (int r = begin / run; begin < end; ++r) {
        const int from = begin - r * run, until = std::min(end - r * run, run);
        begin = (r + 1) * run;
        const int h = at.p * x.step_h + x.h0 + r;
        const bool exists = h >= 0 && h < x.H;
        const int a = exists ? std::clamp(first, from, until) : until;
        const int b = exists ? std::clamp(last, a, until) : until;
        const float* source = x.x + ((ptrdiff_t(at.n) * x.H + h) * x.W + w) * x.C + a;
        for (int i = 0; i < count && b - a == until - from; ++i, source += step)
            copy_run(to + i * kRowStride, source, b - a, stop);
        for (int i = 0; i < count && b - a < until - from; ++i, source += step) {
            float* row = to + i * kRowStride;
            std::fill_n(row, a - from, 0.0f);
            if (b > a) copy_run(row + a - from, source, b - a, stop);
            std::fill_n(row + b - from, until - b, 0.0f);
        }
        to += until - from;
    }
}

// Packs rows [row, row + rows) × depth [begin, end) of the patch matrix for Micro::tile_by_row. In
// NHWC the S·C elements of one filter row are contiguous in the image.
inline void pack_by_row(const Patches& x, int64_t row, int rows, int begin, int end, float* to) {
    const int inner_begin = ceil_div(std::max(0, -x.w0), x.step_w);
    const int inner_end = x.W - x.S < x.w0 ? 0 : (x.W - x.S - x.w0) / x.step_w + 1;
    Row at(x, row);
    for (int i = 0; i < rows;) {
        const bool inner = at.q >= inner_begin && at.q < inner_end;
        const int count = inner ? std::min({rows - i, inner_end - at.q, x.Q - at.q}) : 1;
        copy_patches(x, at, count, begin, end, to + ptrdiff_t(i) * kRowStride);
        at.skip(x, count);
        i += count;
    }
}

// Floats of a panel of Micro::tile_by_depth.
inline ptrdiff_t depth_panel_elems(const Micro& micro, int depth) {
    return ptrdiff_t(depth) * micro.lane;
}
// The same for Micro::tile_by_depth: transposed panels. Patches are first copied to `rows`.
inline void pack_by_depth(const Micro& micro, const Patches& x, bool plain, int64_t row,
                          const Panels& panels, int begin, int end, float* rows, float* to) {
    for (int p = 0; p < panels.count; ++p, to += depth_panel_elems(micro, end - begin)) {
        const int64_t first = row + panels.begin(p);
        if (!plain) pack_by_row(x, first, panels.height(p), begin, end, rows);
        micro.transpose(plain ? x.x + first * x.C + begin : rows, plain ? x.C : kRowStride,
                        end - begin, panels.height(p), to, micro.lane);
    }
}

// Packs depth [begin, end) of columns [j, j + width) of b into panels of nr columns with stride
// `panel`. width is a multiple of nr; columns that do not exist hold any number.
inline void pack_panels(const Micro& micro, const RightSide& b, int depth, int begin, int end,
                        int j, int width, int columns, float* to, ptrdiff_t panel = 0) {
    const int nr = micro.nr, tap_depth = depth / b.taps, count = std::min(width, columns - j);
    for (int k = begin; k < end;) {
        const int tap = k / tap_depth, run = std::min(end, (tap + 1) * tap_depth) - k;
        const float* from = b.b + (b.tap_start ? b.tap_start[tap] : 0) +
                            (k - tap * tap_depth) * b.step_k + j * b.step_j;
        for (int first = 0; first < width; first += nr) {
            const int exist = std::clamp(count - first, 0, nr);
            float* at = to + first / nr * panel;
            if (exist < nr)
                for (int i = 0; i < run; ++i) std::fill_n(at + i * nr + exist, nr - exist, 0.0f);
            if (b.step_j != 1)
                micro.transpose(from + first * b.step_j, b.step_j, run, exist, at, nr);
        }
        if (b.step_j == 1)
            for (int i = 0; i < run; ++i) {
                const float* row = from + i * b.step_k;
                __builtin_prefetch(row + 8 * b.step_k);
                for (int first = 0; first < count; first += nr)
                    copy_panel_row(to + first / nr * panel + i * nr, row + first,
                                   std::min(nr, count - first));
            }
        k += run, to += ptrdiff_t(run) * nr;
    }
}

}  // namespace convoy
