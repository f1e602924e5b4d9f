// builtins.h — CUDA's built-in types and device functions that C++ does not have.
//
// All names live in convoy::simt, where the kernels are compiled too (kernels/cuda/cuda.h): they
// are found as CUDA's are, and both can be in one binary.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace convoy::simt {

// ---- types: the same sizes and alignments ----------------------------------------------------

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
constexpr float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// The upper half of a float, rounded to nearest even.
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
inline __nv_bfloat16 __float2bfloat16(float x) { return {x}; }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return {x}; }
inline float __bfloat162float(__nv_bfloat16 x) { return x; }

// ---- functions -------------------------------------------------------------------------------

using std::isfinite, std::isinf, std::isnan;

template <class A, class B>
constexpr auto min(A a, B b) {
    return b < a ? b : a;
}
template <class A, class B>
constexpr auto max(A a, B b) {
    return a < b ? b : a;
}
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }

}  // namespace convoy::simt
