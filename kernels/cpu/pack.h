// pack.h — cutting matrices into blocks and copying them into the form the inner kernels read.
// For gemm.cpp and gemm_rows.cpp alone.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/cpu/gemm.h"

namespace convoy {

inline int ceil_div(int64_t a, int64_t b) { return int((a + b - 1) / b); }

// `count` cut into equal parts of at most `most`, each a multiple of `grain` but the last.
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

// Rows of a block in panels of nearly equal height ≤ mr: 64 rows are 13+13+13+13+12, which keeps
// the kernels full, not 4·14+8.
struct Panels {
    int rows, count;
    Panels(int rows, int mr) : rows(rows), count(std::max(1, ceil_div(rows, mr))) {}
    int begin(int panel) const { return int(int64_t(rows) * panel / count); }
    int height(int panel) const { return begin(panel + 1) - begin(panel); }
};

// Writes a run of floats cut into pieces of `piece`, each `stride` after the one before.
struct PieceWriter {
    float* to;
    int piece;
    ptrdiff_t stride;
    int at = 0;  // within the piece

    template <class Copy>
    void put(int n, Copy&& copy) {
        for (int done = 0; done < n;) {
            const int m = std::min(n - done, piece - at);
            copy(to + at, done, m);
            done += m, at += m;
            if (at == piece) at = 0, to += stride;
        }
    }
    void write(const float* from, int n) {
        put(n, [&](float* t, int done, int m) {
            if (m == kPiece)  // of fixed length: no call
                std::memcpy(t, from + done, kPiece * sizeof(float));
            else if (m == 2 * kPiece)
                std::memcpy(t, from + done, 2 * kPiece * sizeof(float));
            else
                for (int i = 0; i < m; ++i) t[i] = from[done + i];
        });
    }
    void write_zeros(int n) {
        put(n, [&](float* t, int, int m) { std::fill_n(t, m, 0.0f); });
    }
};

// Writes a run of floats in one piece, 16 at a time: it may write up to 15 floats too many, and
// reads as many, but never from `stop` on.
struct RunWriter {
    float* to;
    const float* stop;

    void write(const float* from, int n) {
        if (stop - from >= n + kPiece - 1)
            for (int i = 0; i < n; i += kPiece)
                std::memcpy(to + i, from + i, kPiece * sizeof(float));
        else
            std::memcpy(to, from, n * sizeof(float));
        to += n;
    }
    void write_zeros(int n) {
        std::fill_n(to, n, 0.0f);
        to += n;
    }
};

// Walks the rows (n,p,q) of a patch matrix.
struct Row {
    int n, p, q;
    Row(const Patches& x, int64_t row)
        : n(int(row / (int64_t(x.P) * x.Q))), p(int(row / x.Q % x.P)), q(int(row % x.Q)) {}
    void next(const Patches& x) {
        if (++q == x.Q) {
            q = 0;
            if (++p == x.P) p = 0, ++n;
        }
    }
};

// Elements [begin, end) of one row of the patch matrix. In NHWC the S·C elements of one filter
// row are one run of the image, clipped at its left and right edge.
template <class Writer>
void copy_patch_to(Writer to, const Patches& x, const Row& at, int begin, int end) {
    const int run = x.S * x.C;
    const int w = at.q * x.step_w + x.w0;
    const int first = std::clamp(-w, 0, x.S) * x.C;      // of the run, what is inside
    const int last = std::clamp(x.W - w, 0, x.S) * x.C;  // of the image
    for (int r = begin / run; begin < end; ++r) {
        const int from = begin - r * run, until = std::min(end - r * run, run);
        begin = (r + 1) * run;
        const int h = at.p * x.step_h + x.h0 + r;
        if (h < 0 || h >= x.H) {
            to.write_zeros(until - from);
            continue;
        }
        const int a = std::clamp(first, from, until), b = std::clamp(last, a, until);
        if (a > from) to.write_zeros(a - from);
        if (b > a) {
            const ptrdiff_t pixel = (ptrdiff_t(at.n) * x.H + h) * x.W + w;
            to.write(x.x + pixel * x.C + a, b - a);
        }
        if (until > b) to.write_zeros(until - b);
    }
}

// The same in pieces of `piece` (16 or more) floats, each `stride` after the one before.
inline void copy_patch(const Patches& x, const Row& at, int begin, int end, float* to, int piece,
                       ptrdiff_t stride) {
    constexpr int kLongest = 512;
    const int count = end - begin;
    if (x.C % kPiece == 0 || count > kLongest)
        return copy_patch_to(PieceWriter{to, piece, stride}, x, at, begin, end);
    // Runs that begin and end anywhere (three channels): first side by side, then cut.
    float run[kLongest + kPiece];
    copy_patch_to(RunWriter{run, x.x + ptrdiff_t(x.N) * x.H * x.W * x.C}, x, at, begin, end);
    PieceWriter{to, piece, stride}.write(run, count);
}

// Rows [row, row + panels.rows) × depth [begin, end) of the patch matrix as by_row panels.
inline void pack_by_row(const Patches& x, int64_t row, const Panels& panels, int begin, int end,
                        float* to) {
    const int padded = ceil_div(end - begin, kPiece) * kPiece;
    Row at(x, row);
    for (int panel = 0; panel < panels.count; ++panel) {
        const int height = panels.height(panel);
        for (int i = 0; i < height; ++i, at.next(x))
            copy_patch(x, at, begin, end, to + i * kPiece, kPiece, ptrdiff_t(height) * kPiece);
        to += ptrdiff_t(height) * padded;
    }
}

// Depth [begin, end) of one panel of nr columns of b, from column j; missing columns are 0.
inline void pack_panel(const RightSide& b, int depth, int begin, int end, int j, int columns,
                       int nr, float* to) {
    const int tap_depth = depth / b.taps, count = std::min(nr, columns - j);
    for (int k = begin; k < end;) {
        const int tap = k / tap_depth, stop = std::min(end, (tap + 1) * tap_depth);
        const float* from = b.b + (b.tap_start ? b.tap_start[tap] : 0) +
                            (k - tap * tap_depth) * b.step_k + j * b.step_j;
        const int run = stop - k;
        if (b.step_j == 1)
            for (int i = 0; i < run; ++i)
                std::memcpy(to + i * nr, from + i * b.step_k, count * sizeof(float));
        else  // a cache line of each column at a time: its columns often share one cache set
            for (int i = 0; i < run; i += kPiece)
                for (int j = 0; j < count; ++j)
                    for (int l = i; l < std::min(run, i + kPiece); ++l)
                        to[l * nr + j] = from[l + j * b.step_j];  // step_k is 1
        if (count < nr)
            for (int i = 0; i < run; ++i) std::fill(to + i * nr + count, to + (i + 1) * nr, 0.0f);
        k = stop, to += ptrdiff_t(run) * nr;
    }
}

}  // namespace convoy
