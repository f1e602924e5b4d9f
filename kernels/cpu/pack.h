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
inline void copy_patch(const Patches& x, const Row& at, int begin, int end, PieceWriter to) {
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

// Rows [row, row + panels.rows) × depth [begin, end) of the patch matrix as by_row panels.
inline void pack_by_row(const Patches& x, int64_t row, const Panels& panels, int begin, int end,
                        float* to) {
    const int padded = ceil_div(end - begin, kPiece) * kPiece;
    Row at(x, row);
    for (int panel = 0; panel < panels.count; ++panel) {
        const int height = panels.height(panel);
        for (int i = 0; i < height; ++i, at.next(x))
            copy_patch(x, at, begin, end, {to + i * kPiece, kPiece, ptrdiff_t(height) * kPiece});
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
        for (; k < stop; ++k, from += b.step_k, to += nr) {
            if (b.step_j == 1)
                std::memcpy(to, from, count * sizeof(float));
            else
                for (int i = 0; i < count; ++i) to[i] = from[i * b.step_j];
            std::fill(to + count, to + nr, 0.0f);
        }
    }
}

}  // namespace convoy
