// winograd_tiles.h — how an image is cut into the blocks of its output. For winograd.cpp and
// winograd_grad_w.cpp alone.
#pragma once

#include <algorithm>

#include "kernels/cpu/pack.h"
#include "kernels/cpu/winograd.h"

namespace convoy {

constexpr int kXi = 36;  // numbers of a transformed block

// Floats between the arrays of two xi beside their size, which is often a multiple of 4 KB: all 36
// numbers of a channel would then fall into one set of the L1 cache.
constexpr int kStagger = 16;

inline int round_up(int n, int to) { return (n + to - 1) / to * to; }

inline const WinogradMethod& method_for(const Micro& micro, const Patches& x) {
    return x.R == 3 ? micro.winograd3 : micro.winograd5;
}

// Tile t covers outputs [out·row, out·row + out) × [out·col, out·col + out) of image n, where out
// is 4 for 3x3 windows and 2 for 5x5.
struct Tiles {
    int P, Q, out, rows, cols, count;
    explicit Tiles(const Patches& x)
        : P(x.P),
          Q(x.Q),
          out(7 - x.R),
          rows(ceil_div(x.P, out)),
          cols(ceil_div(x.Q, out)),
          count(x.N * rows * cols) {}

    // The 6x6 pixels of x under tile t.
    WinogradBlock input(const Patches& x, int t) const {
        const int n = t / (rows * cols);
        const int h = t / cols % rows * out + x.h0, w = t % cols * out + x.w0;
        const ptrdiff_t pixel = x.C, line = pixel * x.W;
        return {x.x + (ptrdiff_t(n) * x.H + h) * line + w * pixel,
                line,
                pixel,
                x.C,
                std::max(0, -h),
                std::min(6, x.H - h),
                std::max(0, -w),
                std::min(6, x.W - w)};
    }
    // Channels [k, k_end) of the outputs of tile t, y N×P×Q×K.
    WinogradBlock output(const float* y, int K, int t, int k, int k_end) const {
        const int n = t / (rows * cols), p = t / cols % rows * out, q = t % cols * out;
        const ptrdiff_t pixel = K, line = pixel * Q;
        return {y + (ptrdiff_t(n) * P + p) * line + q * pixel + k,
                line,
                pixel,
                k_end - k,
                0,
                std::min(out, P - p),
                0,
                std::min(out, Q - q)};
    }
};

}  // namespace convoy
