// reduce.h — the arithmetic of the ring: sums, and the bf16 form of floats on the wire.
//
// bf16 is the upper half of a float. Packing rounds to nearest, ties to even; a NaN stays a NaN.
// Blocks must not overlap.
#pragma once

#include <cstddef>
#include <cstdint>

namespace convoy {

void add(float* into, const float* from, size_t n);             // into += from
void pack_bf16(uint16_t* into, const float* from, size_t n);    // into = bf16(from)
void unpack_bf16(float* into, const uint16_t* from, size_t n);  // into = from, exactly
void add_bf16(float* into, const uint16_t* from, size_t n);     // into += from, in fp32

}  // namespace convoy
