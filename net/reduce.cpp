// Loops over blocks of 16 with a constant trip count: compilers turn these into vector instructions
// at -O2 on every machine.
#include "net/reduce.h"

#include <bit>

namespace convoy {

namespace {

constexpr size_t kBlock = 16;

template <class Op, class A, class B>
inline void for_blocks(A* __restrict a, B* __restrict b, size_t n, Op op) {
    size_t i = 0;
    for (; i + kBlock <= n; i += kBlock)
        for (size_t j = 0; j < kBlock; ++j) op(a[i + j], b[i + j]);
    for (; i < n; ++i) op(a[i], b[i]);
}

inline uint16_t to_bf16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    // Rounding could carry a NaN's few bits over into infinity: keep its top, set its quiet bit.
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    return uint16_t(nan ? (bits >> 16 | 0x40) : rounded);
}

inline float to_float(uint16_t value) { return std::bit_cast<float>(uint32_t(value) << 16); }

}  // namespace

void add(float* into, const float* from, size_t n) {
    for_blocks(into, from, n, [](float& a, const float& b) { a += b; });
}

void pack_bf16(uint16_t* into, const float* from, size_t n) {
    for_blocks(into, from, n, [](uint16_t& a, const float& b) { a = to_bf16(b); });
}

void unpack_bf16(float* into, const uint16_t* from, size_t n) {
    for_blocks(into, from, n, [](float& a, const uint16_t& b) { a = to_float(b); });
}

void add_bf16(float* into, const uint16_t* from, size_t n) {
    for_blocks(into, from, n, [](float& a, const uint16_t& b) { a += to_float(b); });
}

}  // namespace convoy
