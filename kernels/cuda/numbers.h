// numbers.h — numbers that are floats in registers, and floats or bf16 in memory.
//
// Activations are what `--precision` says (CudaBackend::activations); statistics, gradients of
// weights and sums are floats always. A kernel that handles activations is a template over the type
// of its numbers, or takes Numbers where a branch costs nothing. All compute in fp32; a bf16 is
// rounded to the nearest, ties to even, as it is stored.
#pragma once

#include <initializer_list>
#include <type_traits>

#include "kernels/cuda/cuda.h"
#include "kernels/tensor.h"

namespace convoy::CONVOY_DEVICE {

using bf16 = __nv_bfloat16;

// f(float()) or f(bf16()): what a kernel is launched for.
template <class F>
void with_type(Type type, F&& f) {
    if (type == Type::kBfloat16)
        f(bf16(0.0f));
    else
        f(0.0f);
}

__device__ __forceinline__ float load(const float* x) { return *x; }
__device__ __forceinline__ float load(const bf16* x) { return __bfloat162float(*x); }
__device__ __forceinline__ void store(float* x, float value) { *x = value; }
__device__ __forceinline__ void store(bf16* x, float value) { *x = __float2bfloat16_rn(value); }

// Numbers that are read or written in one access.
template <class T, int kCount>
struct alignas(kCount * sizeof(T)) Pack {
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
// Zero where the number of the same place in `mask` is not positive.
template <int kCount, class T>
__device__ __forceinline__ void mask_pack(float (&to)[kCount], const T* mask) {
    float signs[kCount];
    load_pack(signs, mask);
#pragma unroll
    for (int e = 0; e < kCount; ++e)
        if (signs[e] <= 0) to[e] = 0;
}

// f(T(), 4 or 1), for tensors of one type: how many neighbouring channels a thread takes at once.
// Four, where all of them (or none) allow it.
template <class F>
void with_pack(std::initializer_list<Tensor> tensors, F&& f) {
    bool four = true;
    for (const Tensor& x : tensors)
        four &= !x || (x.C % 4 == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0);
    with_type(tensors.begin()->type, [&](auto type) {
        if (four)
            f(type, std::integral_constant<int, 4>());
        else
            f(type, std::integral_constant<int, 1>());
    });
}

// Numbers whose type is known when the kernel runs.
struct Numbers {
    void* data = nullptr;
    bool is_bf16 = false;

    Numbers(std::nullptr_t = nullptr) {}
    Numbers(Tensor x) : data(x.data), is_bf16(x.type == Type::kBfloat16) {}

    __device__ float operator[](size_t i) const {
        return is_bf16 ? load(static_cast<const bf16*>(data) + i)
                       : load(static_cast<const float*>(data) + i);
    }
    __device__ void set(size_t i, float value) const {
        if (is_bf16)
            store(static_cast<bf16*>(data) + i, value);
        else
            store(static_cast<float*>(data) + i, value);
    }
    // The value after it was rounded to the stored type.
    __device__ float rounded(float value) const {
        return is_bf16 ? __bfloat162float(__float2bfloat16_rn(value)) : value;
    }
    __device__ explicit operator bool() const { return data != nullptr; }
};

}  // namespace convoy::CONVOY_DEVICE
