// activation.cuh — the activation functions and their gradients, for kernels that apply them. The
// kind is a template argument: a branch per number costs more than all other work of such a kernel.
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/kinds.h"

namespace convoy::CONVOY_DEVICE {

__device__ inline float sigmoid(float x) { return __fdividef(1, 1 + expf(-x)); }
// max() and min() would turn a NaN into a number, and hide it.
__device__ inline float clamped(float x, float most) { return x < 0 ? 0.0f : x > most ? most : x; }

// Φ(x): the probability that a standard normal number is below x.
__device__ inline float normal_below(float x) { return 0.5f * erfcf(-0.707106781f * x); }

template <Activation::Kind kKind>
struct Activate {
    float slope;
    __device__ __forceinline__ float operator()(float x, float) const {
        switch (kKind) {
            case Activation::kNone: return x;
            case Activation::kRelu: return x < 0 ? 0.0f : x;
            case Activation::kRelu6: return clamped(x, 6);
            case Activation::kLeakyRelu: return x < 0 ? slope * x : x;
            case Activation::kElu: return x < 0 ? slope * expm1f(x) : x;
            case Activation::kSigmoid: return sigmoid(x);
            case Activation::kHardSigmoid: return clamped(x * (1 / 6.0f) + 0.5f, 1);
            case Activation::kSilu: return x * sigmoid(x);
            case Activation::kHardSwish: return x * clamped(x * (1 / 6.0f) + 0.5f, 1);
            case Activation::kGelu: return x * normal_below(x);
        }
        return x;
    }
};
template <Activation::Kind kKind>
struct ActivateGrad {
    float slope;
    // y: x if the activation needs_x().
    __device__ __forceinline__ float operator()(float dy, float y) const {
        switch (kKind) {
            case Activation::kNone: return dy;
            case Activation::kRelu: return y <= 0 ? 0.0f : dy;
            case Activation::kRelu6: return y <= 0 || y >= 6 ? 0.0f : dy;
            case Activation::kLeakyRelu: return y <= 0 ? slope * dy : dy;
            case Activation::kElu: return y <= 0 ? (y + slope) * dy : dy;
            case Activation::kSigmoid: return dy * y * (1 - y);
            case Activation::kHardSigmoid: return y <= 0 || y >= 1 ? 0.0f : dy * (1 / 6.0f);
            case Activation::kSilu: return dy * sigmoid(y) * (1 + y * (1 - sigmoid(y)));
            case Activation::kHardSwish:
                return y <= -3 ? 0.0f : y >= 3 ? dy : dy * (y * (1 / 3.0f) + 0.5f);
            case Activation::kGelu:
                return dy * (normal_below(y) + y * 0.398942280f * expf(-0.5f * y * y));
        }
        return dy;
    }
};

}  // namespace convoy::CONVOY_DEVICE
