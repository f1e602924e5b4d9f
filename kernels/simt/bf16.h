// bf16.h — bfloat16 as cuda_bf16.h has it: the upper half of a float, rounded to nearest even.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace convoy::simt {

struct __nv_bfloat16 {
    uint16_t bits = 0;

    __nv_bfloat16() = default;
    __nv_bfloat16(float x) {
        const uint32_t all = std::bit_cast<uint32_t>(x);
        // Adding just under half of the last kept bit, or half where that bit is odd, rounds.
        const uint32_t rounded = all + 0x7FFFu + (all >> 16 & 1);
        bits = std::isnan(x) ? uint16_t(0x7FFF) : uint16_t(rounded >> 16);
    }
    operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

inline __nv_bfloat16 __float2bfloat16(float x) { return {x}; }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return {x}; }
inline float __bfloat162float(__nv_bfloat16 x) { return x; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }

}  // namespace convoy::simt
