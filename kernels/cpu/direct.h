// direct.h — convolutions of stride 1 in bf16, without a matrix of patches.
#pragma once

#include "kernels/cpu/gemm.h"

namespace convoy {

// As multiply_patches(), if this processor multiplies pairs of bf16 and the windows are dense. Else
// returns false and does nothing.
bool multiply_direct(Cpu& cpu, const PatchesOf<Bf16>& a, const RightSideOf<Bf16>& b, int columns,
                     const RowMapOf<Bf16>& result, const EpilogueOf<Bf16>& epilogue);

}  // namespace convoy
