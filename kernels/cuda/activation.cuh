// activation.cuh — the activation functions and their gradients, for kernels that apply them. The
// kind is a template argument: a branch per number costs more than all other work of such a kernel.
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/kinds.h"

namespace convoy::CONVOY_DEVICE {

__device__ inline float sigmoid(float x) { return __fdividef(1, 1 + expf(-x)); }
// max() and min() would turn a NaN into a number, and hide it.
__device__ inline float clamped(float x, float most) { return x < 0 ? 0.0f : x > most ? most : x; }

__device__ inline float elu(float x, float slope) { return x < 0 ? slope * expm1f(x) : x; }
// The probability that a standard normal number is below x, and x times the density at x.
__device__ inline float normal_below(float x) { return 0.5f * erfcf(-0.707106781f * x); }
__device__ inline float normal_slope(float x) { return x * 0.398942280f * expf(-0.5f * x * x); }

#define FORMULA __device__ __forceinline__
#include "kernels/activation_body.h"
#undef FORMULA

template <Kind kKind>
struct Activate {
    float slope;
    __device__ __forceinline__ float operator()(float x, float) const {
        return activated<kKind>(x, slope);
    }
};
template <Kind kKind>
struct ActivateGrad {
    float slope;
    // y: x if the activation needs_x().
    __device__ __forceinline__ float operator()(float dy, float y) const {
        return activated_grad<kKind>(y, dy, slope);
    }
};

}  // namespace convoy::CONVOY_DEVICE
