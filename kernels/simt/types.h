// types.h — CUDA's built-in vector types, as plain structs of the same size and alignment.
//
// All names live in convoy::simt, where the kernels are compiled too (kernels/cuda/cuda.h), so
// they are found as CUDA's are and can share a binary with those of the real toolkit.
#pragma once

#include <cstdint>

namespace convoy::simt {

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

#define SIMT_VECTOR_TYPES(scalar, name)                                        \
    struct alignas(2 * sizeof(scalar)) name##2 {                               \
        scalar x, y;                                                           \
    };                                                                         \
    struct alignas(4 * sizeof(scalar)) name##4 {                               \
        scalar x, y, z, w;                                                     \
    };                                                                         \
    constexpr name##2 make_##name##2(scalar x, scalar y) { return {x, y}; }    \
    constexpr name##4 make_##name##4(scalar x, scalar y, scalar z, scalar w) { \
        return {x, y, z, w};                                                   \
    }
SIMT_VECTOR_TYPES(float, float)
SIMT_VECTOR_TYPES(int, int)
SIMT_VECTOR_TYPES(unsigned, uint)
SIMT_VECTOR_TYPES(unsigned char, uchar)
SIMT_VECTOR_TYPES(unsigned short, ushort)
#undef SIMT_VECTOR_TYPES

struct alignas(16) double2 {
    double x, y;
};

}  // namespace convoy::simt
