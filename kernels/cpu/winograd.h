// winograd.h — 3x3 convolutions of stride 1 with a quarter of the multiplications.
//
// Lavin, Gray: "Fast Algorithms for Convolutional Neural Networks" (2015); here F(4x4, 3x3), fp32:
//
//   forward  y  = Aᵀ [ Σ_c (G w Gᵀ) ⊙ (Bᵀ x B) ] A      a 6x6 block of x gives a 4x4 block of y
//   grad_x   the same with dy for x, and w turned by 180° with k and c exchanged
//   grad_w   dw = Gᵀ [ Σ_blocks (A dy Aᵀ) ⊙ (Bᵀ x B) ] G
//
//   blocks of x ──Bᵀ·B──►  V[xi]: tiles × C  ┐
//                                            ├─ 36 products ─►  M[xi]: tiles × K ──Aᵀ·A──►  y
//   w ──────────G·Gᵀ────►  U[xi]: C × K      ┘
//
// A 4x4 block takes 36 multiplications a channel pair instead of 144. What this costs is the
// traffic of V and M, 2.25 times that of x and y; so a thread takes a few tiles at a time through
// all three steps (winograd.cpp). The relative error (L2) is about 1e-6, bound 5e-6 in the tests.
#pragma once

#include "kernels/cpu/gemm.h"

namespace convoy {

// Whether it beats the product with patches: the rule of `conv = auto`.
bool winograd_pays(const Patches& x, int K);

// result (N×P×Q×K) = epilogue(conv of x with 3x3 filters). x: R = S = 3, steps 1. filters: depth
// x.C, columns K, of 9 taps: filter (r, s) of (c, k) at b[tap_start[3r+s] + c·step_k + k·step_j].
void winograd_conv(Cpu& cpu, const Patches& x, const RightSide& filters, int K, float* result,
                   const Epilogue& epilogue);

// dw += gradient of the filters, K×3×3×C.
void winograd_grad_w(Cpu& cpu, const float* dy, int K, const Patches& x, float* dw);

}  // namespace convoy
