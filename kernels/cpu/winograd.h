// winograd.h — 3x3 (5x5) convolutions of stride 1 with a quarter (a third) of the multiplications.
//
// Lavin, Gray: "Fast Algorithms for Convolutional Neural Networks" (2015); here F(4x4, 3x3) and
// F(2x2, 5x5), in fp32, for images in fp32 or bf16. Both read 6x6 blocks of x.
// They differ only in G and A (winograd_body.h):
//
//   forward  y  = Aᵀ [ Σ_c (G w Gᵀ) ⊙ (Bᵀ x B) ] A      a 6x6 block of x gives a block of y
//   grad_x   the same with dy instead of x, and w rotated by 180° with k and c exchanged
//   grad_w   dw = Gᵀ [ Σ_blocks (A dy Aᵀ) ⊙ (Bᵀ x B) ] G
//
//   blocks of x ──Bᵀ·B──►  V[xi]: tiles × C  ┐
//                                            ├─ 36 products ─►  M[xi]: tiles × K ──Aᵀ·A──►  y
//   w ──────────G·Gᵀ────►  U[xi]: C × K      ┘
//
// A block takes 36 multiplications per pair of channels instead of 4·4·3·3 = 144, or 2·2·5·5 = 100.
// But V and M are 2.25 (9) times as large as x and y, so a thread takes a few tiles at a time
// through all three steps (winograd.cpp). The relative error (L2) is about 1e-6 (tests: 5e-6).
#pragma once

#include <algorithm>

#include "kernels/cpu/pack.h"

namespace convoy {

// result (N×P×Q×K) = epilogue(conv of x). filters: depth x.C, columns K, R·S taps: w(r, s, c, k) at
// b[tap_start[r·S + s] + c·step_k + k·step_j], without gaps.
template <class T>
void winograd_conv(Cpu& cpu, const PatchesOf<T>& x, const RightSideOf<T>& filters, int K, T* result,
                   const EpilogueOf<T>& epilogue);

// dw += gradient of the filters, K×R×S×C.
template <class T>
void winograd_grad_w(Cpu& cpu, const T* dy, int K, const PatchesOf<T>& x, float* dw);

// ---- how an image is cut into tiles -----------------------------------------------------------

constexpr int kXi = 36;  // numbers of a transformed block

inline int round_up(int n, int to) { return (n + to - 1) / to * to; }

template <class T>
const WinogradMethod<T>& method_for(const Micro& micro, const PatchesOf<T>& x) {
    return x.R == 3 ? micro.passes(x.x).winograd3 : micro.passes(x.x).winograd5;
}

// Tile t covers outputs [out·row, out·row + out) × … of image n; out = 4 for 3x3, 2 for 5x5.
struct Tiles {
    int P, Q, out, rows, cols, count;
    template <class T>
    explicit Tiles(const PatchesOf<T>& x)
        : P(x.P),
          Q(x.Q),
          out(7 - x.R),
          rows(ceil_div(x.P, out)),
          cols(ceil_div(x.Q, out)),
          count(x.N * rows * cols) {}

    // The 6x6 pixels of x under tile t.
    template <class T>
    WinogradBlock<T> input(const PatchesOf<T>& x, int t) const {
        const int n = t / (rows * cols);
        const int h = t / cols % rows * out + x.h0, w = t % cols * out + x.w0;
        const ptrdiff_t pixel = x.C, line = pixel * x.W;
        const T* corner = x.x + (ptrdiff_t(n) * x.H + h) * line + w * pixel;
        const int top = std::max(0, -h), bottom = std::min(6, x.H - h);
        const int left = std::max(0, -w), right = std::min(6, x.W - w);
        return {corner, line, pixel, x.C, top, bottom, left, right};
    }
    // Channels [k, k_end) of the outputs of tile t, y N×P×Q×K.
    template <class T>
    WinogradBlock<T> output(const T* y, int K, int t, int k, int k_end) const {
        const int n = t / (rows * cols), p = t / cols % rows * out, q = t % cols * out;
        const ptrdiff_t pixel = K, line = pixel * Q;
        const T* corner = y + (ptrdiff_t(n) * P + p) * line + q * pixel + k;
        return {corner, line, pixel, k_end - k, 0, std::min(out, P - p), 0, std::min(out, Q - q)};
    }
};

}  // namespace convoy
