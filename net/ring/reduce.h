// reduce.h — the arithmetic of the ring: sums, and the bf16 form of floats on the wire.
//
// Packing rounds to nearest, ties to even; a NaN stays a NaN.
// Blocks must not overlap.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/base/bf16.h"

namespace convoy {

// op(a[i], b[i]) for all i, in blocks of 16: a constant trip count is what compilers turn into
// vector instructions at -O2.
template <class A, class B, class Op>
void for_blocks(A* __restrict a, const B* __restrict b, size_t n, Op op) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (size_t j = 0; j < 16; ++j) op(a[i + j], b[i + j]);
    for (; i < n; ++i) op(a[i], b[i]);
}

// into += from
inline void add(float* into, const float* from, size_t n) {
    for_blocks(into, from, n, [](float& a, float b) { a += b; });
}
// into = bf16(from)
inline void pack_bf16(uint16_t* into, const float* from, size_t n) {
    for_blocks(into, from, n, [](uint16_t& a, float b) { a = to_bf16(b); });
}
// into = from, exactly
inline void unpack_bf16(float* into, const uint16_t* from, size_t n) {
    for_blocks(into, from, n, [](float& a, uint16_t b) { a = from_bf16(b); });
}
// into += from, in fp32
inline void add_bf16(float* into, const uint16_t* from, size_t n) {
    for_blocks(into, from, n, [](float& a, uint16_t b) { a += from_bf16(b); });
}

}  // namespace convoy
