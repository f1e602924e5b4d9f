// elements.h — floats or bf16 in memory, always floats in registers.  Twin: kernels/cuda/elements.h
#pragma once

#include "kernels/tensor.h"
#include "src/base/bf16.h"

namespace convoy {

// Calls f(float()) or f(Bf16()): an op on activations is compiled for both types.
template <class F>
void with_type(Type type, F&& f) {
    if (type == Type::kBfloat16)
        f(Bf16());
    else
        f(float());
}

}  // namespace convoy
