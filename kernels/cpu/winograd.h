// winograd.h — 3x3 and 5x5 convolutions of stride 1 with a quarter, or a third, of the
// multiplications.
//
// Lavin, Gray: "Fast Algorithms for Convolutional Neural Networks" (2015); here F(4x4, 3x3) and
// F(2x2, 5x5), fp32. Both take 6x6 blocks of x; they differ in G and A alone (winograd_body.h):
//
//   forward  y  = Aᵀ [ Σ_c (G w Gᵀ) ⊙ (Bᵀ x B) ] A      a 6x6 block of x gives a block of y
//   grad_x   the same with dy for x, and w turned by 180° with k and c exchanged
//   grad_w   dw = Gᵀ [ Σ_blocks (A dy Aᵀ) ⊙ (Bᵀ x B) ] G
//
//   blocks of x ──Bᵀ·B──►  V[xi]: tiles × C  ┐
//                                            ├─ 36 products ─►  M[xi]: tiles × K ──Aᵀ·A──►  y
//   w ──────────G·Gᵀ────►  U[xi]: C × K      ┘
//
// A block takes 36 multiplications a channel pair instead of 4·4·3·3 = 144, or 2·2·5·5 = 100. What
// this costs is the traffic of V and M, 2.25 or 9 times that of x and y; so a thread takes a few
// tiles at a time through all three steps (winograd.cpp). The relative error (L2) is about 1e-6,
// bound 5e-6 in the tests.
#pragma once

#include "kernels/cpu/gemm.h"

namespace convoy {

// Whether the method knows such windows.
inline bool winograd_can(const Patches& x) {
    return (x.R == 3 || x.R == 5) && x.S == x.R && x.step_h == 1 && x.step_w == 1;
}
// Whether it beats the product with patches: the rule of `conv = auto`.
bool winograd_pays(const Patches& x, int K);

// result (N×P×Q×K) = epilogue(conv of x). filters: depth x.C, columns K, of R·S taps: filter (r, s)
// of (c, k) at b[tap_start[r·S + s] + c·step_k + k·step_j].
void winograd_conv(Cpu& cpu, const Patches& x, const RightSide& filters, int K, float* result,
                   const Epilogue& epilogue);

// dw += gradient of the filters, K×R×S×C.
void winograd_grad_w(Cpu& cpu, const float* dy, int K, const Patches& x, float* dw);

}  // namespace convoy
