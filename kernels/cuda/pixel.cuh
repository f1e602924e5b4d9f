// pixel.cuh — from the number of a value to its place in a tensor N×H×W×C, and back.
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/tensor.h"

namespace convoy::CONVOY_DEVICE {

// Number i of a tensor.
struct Pixel {
    int n, h, w, c;
    __device__ Pixel(size_t i, Shape s)
        : n(int(i / (size_t(s.H) * s.W * s.C))),
          h(int(i / (size_t(s.W) * s.C) % s.H)),
          w(int(i / s.C % s.W)),
          c(int(i % s.C)) {}
};
__device__ __forceinline__ size_t index(Shape s, int n, int h, int w, int c) {
    return ((size_t(n) * s.H + h) * s.W + w) * s.C + c;
}

}  // namespace convoy::CONVOY_DEVICE
