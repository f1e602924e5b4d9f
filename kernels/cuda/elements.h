// elements.h — numbers that are floats in registers, and floats or bf16 in memory.
//
// `--precision` sets the type of activations (CudaBackend::activations). Statistics, gradients of
// weights, and sums are always floats. A kernel on activations is a template over their type. All
// kernels compute in fp32. A bf16 is rounded to nearest, ties to even, when it is stored.
#pragma once

#include <initializer_list>
#include <type_traits>

#include "kernels/cuda/cuda.h"
#include "kernels/tensor.h"

namespace convoy::CONVOY_DEVICE {

using bf16 = __nv_bfloat16;

// Calls f(float()) or f(bf16()), so that f launches a kernel for this type.
template <class F>
void with_type(Type type, F&& f) {
    if (type == Type::kBfloat16)
        f(bf16(0.0f));
    else
        f(0.0f);
}

__device__ __forceinline__ float load(const float* x) { return *x; }
__device__ __forceinline__ float load(const uint8_t* x) { return float(*x); }
__device__ __forceinline__ float load(const bf16* x) { return __bfloat162float(*x); }
__device__ __forceinline__ void store(float* x, float value) { *x = value; }
__device__ __forceinline__ void store(bf16* x, float value) { *x = __float2bfloat16_rn(value); }
// The value, rounded to a T.
template <class T>
__device__ __forceinline__ float rounded(float value) {
    if constexpr (sizeof(T) == sizeof(float)) return value;
    return __bfloat162float(__float2bfloat16_rn(value));
}

constexpr unsigned kAll = 0xFFFFFFFFu;  // lanes of a warp
template <class T>
__device__ T warp_sum(T v) {
    for (int by = 16; by > 0; by /= 2) v += __shfl_xor_sync(kAll, v, by);
    return v;
}

// kCount numbers that are read or written in one access, or in several accesses of 16 bytes.
template <class T, int kCount>
struct alignas(kCount * sizeof(T) < 16 ? kCount * sizeof(T) : 16) Pack {
    T at[kCount];
};
template <class P>
__device__ __forceinline__ bool fits(const void* address) {
    return reinterpret_cast<uintptr_t>(address) % alignof(P) == 0;
}

template <int kCount, class T>
__device__ __forceinline__ void load_pack(float (&to)[kCount], const T* from) {
    const auto pack = *reinterpret_cast<const Pack<T, kCount>*>(from);
#pragma unroll
    for (int e = 0; e < kCount; ++e) to[e] = load(&pack.at[e]);
}
template <int kCount, class T>
__device__ __forceinline__ void store_pack(T* to, const float (&from)[kCount]) {
    Pack<T, kCount> pack;
#pragma unroll
    for (int e = 0; e < kCount; ++e) store(&pack.at[e], from[e]);
    *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
}
// to[e] = 0 where mask[e] <= 0.
template <int kCount, class T>
__device__ __forceinline__ void mask_pack(float (&to)[kCount], const T* mask) {
    float signs[kCount];
    load_pack(signs, mask);
#pragma unroll
    for (int e = 0; e < kCount; ++e)
        if (signs[e] <= 0) to[e] = 0;
}

// Whether each pixel's channels begin at a multiple of 16 bytes.
inline bool has_packs(Tensor x) {
    return x.C * bytes_of(x.type) % 16 == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
}
// Calls f(T(), count) for tensors of one type. count: how many neighbouring channels a thread takes
// at once. This is 16 bytes of channels if all tensors allow it, else one channel.
template <class F>
void with_pack(std::initializer_list<Tensor> tensors, F&& f) {
    bool packs = true;
    for (const Tensor& x : tensors) packs &= !x || has_packs(x);
    with_type(tensors.begin()->type, [&](auto type) {
        if (packs)
            f(type, std::integral_constant<int, 16 / int(sizeof type)>());
        else
            f(type, std::integral_constant<int, 1>());
    });
}

}  // namespace convoy::CONVOY_DEVICE
