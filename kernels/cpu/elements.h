// elements.h — floats or bf16 in memory, always floats in registers.  Twin: kernels/cuda/elements.h
#pragma once

#include "kernels/tensor.h"
#include "src/base/bf16.h"

namespace convoy {

// Rounds to nearest, ties to even, when stored. Loops over it are vectorised.
struct Bf16 {
    uint16_t bits;
    Bf16() = default;
    Bf16(float value) : bits(to_bf16(value)) {}
    operator float() const { return from_bf16(bits); }
};

// Calls f(float()) or f(Bf16()): an op on activations is compiled for both types.
template <class F>
void with_type(Type type, F&& f) {
    if (type == Type::kBfloat16)
        f(Bf16());
    else
        f(float());
}

}  // namespace convoy
