// pack.h — cuts matrices into blocks and copies them into the layout that the inner kernels read.
//
// Packed blocks hold 32-bit words. Where bf16 lies in memory there are two ways to make them:
//
//   Floats    x0 x1 x2 x3  →  x0 x1 x2 x3     fp32
//   Widened   x0 x1 x2 x3  →  x0 x1 x2 x3     bf16 becomes fp32 on the way, on every processor
//   Pairs     x0 x1 x2 x3  →  x0x1  x2x3      neighbours of the depth, for Micro::pairs
//
// If neighbours of the depth also lie next to each other in memory, pairs need no packing of their
// own: words() is the same matrix as floats of half the depth, which are only moved.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/cpu/gemm.h"

namespace convoy {

inline int ceil_div(int64_t a, int64_t b) { return int((a + b - 1) / b); }

// Padding between panels, or the arrays of two xi of Winograd's method. Without it their size is
// often a multiple of 4 KB, and the same place of all would fall into one set of the L1 cache.
constexpr int kStagger = 16;

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

// Copies n numbers, 16 at a time: up to 15 too many, but reads nothing at or after `stop`. From
// bf16 to float it widens them.
template <class T, class To>
inline void copy_run(To* to, const T* from, int n, const T* stop) {
    if (stop - from < n + kChunk - 1)
        std::copy_n(from, n, to);
    else if constexpr (std::is_same_v<To, float> && std::is_same_v<T, float>)
        for (int i = 0; i < n; i += kChunk) copy_floats<kChunk>(to + i, from + i);
    else
        for (int i = 0; i < n; i += kChunk) std::copy_n(from + i, kChunk, to + i);
}

// How numbers in memory become words. put() writes `count` words of one row (Pairs: of two rows).
struct Floats {
    using T = float;
    static constexpr int kDepth = 1;  // numbers of the depth in a word
    // Copies of a constant length need no call.
    static void put(float* to, const float* from, const float*, int count) {
        if (count == 32)
            copy_floats<32>(to, from);
        else if (count == 16)
            copy_floats<16>(to, from);
        else if (count == 8)
            copy_floats<8>(to, from);
        else
            std::memcpy(to, from, count * sizeof(float));
    }
};
struct Widened {
    using T = Bf16;
    static constexpr int kDepth = 1;
    static void put(float* to, const Bf16* from, const Bf16*, int count) {
        if (count == 16)
            std::copy_n(from, 16, to);
        else
            std::copy_n(from, count, to);
    }
};
struct Pairs {
    using T = Bf16;
    static constexpr int kDepth = 2;
    typedef uint32_t Word __attribute__((may_alias));
    static void put(float* to, const Bf16* first, const Bf16* second, int count) {
        Word* words = reinterpret_cast<Word*>(to);
#pragma GCC ivdep
        for (int i = 0; i < count; ++i) words[i] = first[i].bits | uint32_t(second[i].bits) << 16;
    }
};

// Pairs of neighbours in memory, as floats.
inline PatchesOf<float> words(const PatchesOf<Bf16>& x) {
    const auto& [all, N, H, W, C, R, S, h0, w0, step_h, step_w, P, Q, d_h, d_w] = x;
    const auto* pairs = reinterpret_cast<const float*>(all);
    return {pairs, N, H, W, C / 2, R, S, h0, w0, step_h, step_w, P, Q, d_h, d_w};
}
// Calls f(micro, a, b, how b is packed) for the way to multiply these on this processor.
template <class T, class F>
void with_words(Cpu& cpu, const PatchesOf<T>& a, const RightSideOf<T>& b, F&& f) {
    if constexpr (std::is_same_v<T, float>) {
        f(cpu.micro, a, b, Floats());
    } else {
        if (!cpu.micro.pairs || a.C % 2) return f(cpu.micro, a, b, Widened());
        if (b.step_j == 1) return f(*cpu.micro.pairs, words(a), b, Pairs());
        ENSURE(!b.tap_start && b.step_j % 2 == 0, "step_j is ", b.step_j);
        f(*cpu.micro.pairs, words(a),
          RightSideOf<float>{reinterpret_cast<const float*>(b.b), 1, b.step_j / 2}, Floats());
    }
}

// Walks the rows (n,p,q) of a patch matrix.
struct Row {
    int n, p, q;
    template <class T>
    Row(const PatchesOf<T>& x, int64_t row)
        : n(int(row / (int64_t(x.P) * x.Q))), p(int(row / x.Q % x.P)), q(int(row % x.Q)) {}
    // q + count must not exceed x.Q.
    template <class T>
    void skip(const PatchesOf<T>& x, int count) {
        if ((q += count) == x.Q) {
            q = 0;
            if (++p == x.P) p = 0, ++n;
        }
    }
};

// Copies elements [begin, end) of `count` neighbouring rows of the patch matrix, kRowStride apart.
// If count > 1, the windows must lie inside the columns. The next filter row overwrites excess.
template <class T, class To>
void copy_patches(const PatchesOf<T>& x, const Row& at, int count, int begin, int end, To* to) {
    const T* stop = x.x + ptrdiff_t(x.N) * x.H * x.W * x.C;
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
        const T* source = x.x + ((ptrdiff_t(at.n) * x.H + h) * x.W + w) * x.C + a;
        for (int i = 0; i < count && b - a == until - from; ++i, source += step)
            copy_run(to + i * kRowStride, source, b - a, stop);
        for (int i = 0; i < count && b - a < until - from; ++i, source += step) {
            To* row = to + i * kRowStride;
            std::fill_n(row, a - from, To(0));
            if (b > a) copy_run(row + a - from, source, b - a, stop);
            std::fill_n(row + b - from, until - b, To(0));
        }
        to += until - from;
    }
}

// Packs rows [row, row + rows) × depth [begin, end) of the patch matrix for Micro::tile_by_row. In
// NHWC the S·C elements of one filter row are contiguous in the image. With a dilation only the C
// elements of one tap are contiguous, so each tap is packed as a window of 1x1.
template <class T, class To>
void pack_by_row(const PatchesOf<T>& x, int64_t row, int rows, int begin, int end, To* to) {
    if (x.dilation_h * x.dilation_w != 1) {
        for (int k = begin, next; k < end; k = next) {
            const int tap = k / x.C, start = tap * x.C;
            PatchesOf<T> one = x;
            one.R = one.S = one.dilation_h = one.dilation_w = 1;
            one.h0 += tap / x.S * x.dilation_h, one.w0 += tap % x.S * x.dilation_w;
            next = std::min(end, start + x.C);
            pack_by_row(one, row, rows, k - start, next - start, to + k - begin);
        }
        return;
    }
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

// Words of a panel of Micro::tile_by_depth.
inline ptrdiff_t depth_panel_elems(const Micro& micro, int depth) {
    return ptrdiff_t(ceil_div(depth, kChunk)) * kChunk * micro.lane;
}
// For Micro::tile_by_depth: transposed (on AMX: rows in chunks). `rows`: for a copy of the patches.
template <class T>
void pack_by_depth(const Micro& micro, const PatchesOf<T>& x, bool plain, int64_t row,
                   const Panels& panels, int begin, int end, float* rows, float* to) {
    for (int p = 0; p < panels.count; ++p, to += depth_panel_elems(micro, end - begin)) {
        const int64_t first = row + panels.begin(p);
        const int height = panels.height(p);
        const float* from = rows;
        ptrdiff_t step = kRowStride;
        if constexpr (std::is_same_v<T, float>)
            if (plain) from = x.x + first * x.C + begin, step = x.C;
        if (from == rows) pack_by_row(x, first, height, begin, end, rows);
        if (!micro.amx) {
            micro.transpose(from, step, end - begin, height, to, micro.lane);
            continue;
        }
        for (int k = 0; k < end - begin; k += kChunk)
            for (int i = 0; i < height; ++i)
                Floats::put(to + k * micro.lane + i * kChunk, from + i * step + k, nullptr,
                            std::min(kChunk, end - begin - k));
    }
}

// to[k·nr + j] = from[j·step + k]; bf16 is widened.
template <class T>
void transpose_panel(const Micro& micro, const T* from, ptrdiff_t step, int depth, int columns,
                     float* to) {
    if constexpr (std::is_same_v<T, float>)
        return micro.transpose(from, step, depth, columns, to, micro.nr);
    constexpr int kSome = 64;
    float rows[32 * kSome];
    for (int k = 0; k < depth; k += kSome) {
        const int some = std::min(kSome, depth - k);
        for (int j = 0; j < columns; ++j) std::copy_n(from + j * step + k, some, rows + j * kSome);
        micro.transpose(rows, kSome, some, columns, to + k * micro.nr, micro.nr);
    }
}

// Packs depth [begin, end) (in words) of columns [j, j + width) of b into panels of nr columns with
// stride `panel`. width is a multiple of nr; columns that do not exist hold any number.
template <class Form>
void pack_panels(const Micro& micro, Form, const RightSideOf<typename Form::T>& b, int depth,
                 int begin, int end, int j, int width, int columns, float* to,
                 ptrdiff_t panel = 0) {
    const int nr = micro.nr, tap_depth = depth / b.taps, count = std::min(width, columns - j);
    const ptrdiff_t step = Form::kDepth * b.step_k;  // of a word
    for (int k = begin; k < end;) {
        const int tap = k / tap_depth, run = std::min(end, (tap + 1) * tap_depth) - k;
        const auto* from = b.b + (b.tap_start ? b.tap_start[tap] : 0) +
                           (k - tap * tap_depth) * step + j * b.step_j;
        for (int first = 0; first < width; first += nr) {
            const int exist = std::clamp(count - first, 0, nr);
            float* at = to + first / nr * panel;
            if (exist < nr)
                for (int i = 0; i < run; ++i) std::fill_n(at + i * nr + exist, nr - exist, 0.0f);
            if (b.step_j != 1)
                transpose_panel(micro, from + first * b.step_j, b.step_j, run, exist, at);
        }
        if (b.step_j == 1)
            for (int i = 0; i < run; ++i) {
                const auto* row = from + i * step;
                __builtin_prefetch(row + 8 * step);
                for (int first = 0; first < count; first += nr)
                    Form::put(to + first / nr * panel + i * nr, row + first, row + b.step_k + first,
                              std::min(nr, count - first));
            }
        k += run, to += ptrdiff_t(run) * nr;
    }
}

}  // namespace convoy
