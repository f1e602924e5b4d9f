// activation.cuh — the activation functions and their gradients, for kernels that apply them.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/cuda.h"

namespace convoy::CONVOY_DEVICE {

__device__ inline float sigmoid(float x) { return 1 / (1 + expf(-x)); }
// max() and min() would turn a NaN into a number, and hide it.
__device__ inline float clamped(float x, float most) { return x < 0 ? 0.0f : x > most ? most : x; }

// Φ(x): the probability that a standard normal number is below x.
__device__ inline float normal_below(float x) { return 0.5f * erfcf(-0.707106781f * x); }

struct Activate {
    Activation f;
    __device__ float operator()(float x, float) const {
        switch (f.kind) {
            case Activation::kNone: return x;
            case Activation::kRelu: return x < 0 ? 0.0f : x;
            case Activation::kRelu6: return clamped(x, 6);
            case Activation::kLeakyRelu: return x < 0 ? f.slope * x : x;
            case Activation::kElu: return x < 0 ? f.slope * expm1f(x) : x;
            case Activation::kSigmoid: return sigmoid(x);
            case Activation::kHardSigmoid: return clamped(x / 6 + 0.5f, 1);
            case Activation::kSilu: return x * sigmoid(x);
            case Activation::kHardSwish: return x * clamped(x / 6 + 0.5f, 1);
            case Activation::kGelu: return x * normal_below(x);
        }
        return x;
    }
};
struct ActivateGrad {
    Activation f;
    // y: x if f.needs_x().
    __device__ float operator()(float dy, float y) const {
        switch (f.kind) {
            case Activation::kNone: return dy;
            case Activation::kRelu: return y <= 0 ? 0.0f : dy;
            case Activation::kRelu6: return y <= 0 || y >= 6 ? 0.0f : dy;
            case Activation::kLeakyRelu: return y <= 0 ? f.slope * dy : dy;
            case Activation::kElu: return y <= 0 ? (y + f.slope) * dy : dy;
            case Activation::kSigmoid: return dy * y * (1 - y);
            case Activation::kHardSigmoid: return y <= 0 || y >= 1 ? 0.0f : dy / 6;
            case Activation::kSilu: return dy * sigmoid(y) * (1 + y * (1 - sigmoid(y)));
            case Activation::kHardSwish: return y <= -3 ? 0.0f : y >= 3 ? dy : dy * (y / 3 + 0.5f);
            case Activation::kGelu:
                return dy * (normal_below(y) + y * 0.398942280f * expf(-0.5f * y * y));
        }
        return dy;
    }
};

}  // namespace convoy::CONVOY_DEVICE
