// pixel.cuh — from the number of a value to its place in a tensor N×H×W×C, and back.
#pragma once

#include <algorithm>

#include "kernels/cuda/cuda.h"
#include "kernels/tensor.h"

namespace convoy::CONVOY_DEVICE {

// Divides numbers from 0 to 2³¹ − 1 by a number of the launch: a product and a shift, where a
// division takes about 20 instructions.
//
//   With 2^shift ≥ by, factor = ⌈2^(31+shift) / by⌉ is too large by less than 1, so the quotient
//   n·factor / 2^(31+shift) is too large by less than 2^-shift ≤ 1 / by: its floor is right.
struct Divisor {
    int by;
    uint32_t factor = 0, shift = 0;

    Divisor(int by = 1) : by(std::max(by, 1)) {
        while (int64_t(1) << shift < this->by) ++shift;
        factor =
            uint32_t(((uint64_t(1) << (31 + shift)) + uint64_t(this->by) - 1) / uint64_t(this->by));
    }
};
__device__ __forceinline__ int operator/(int n, Divisor d) {
    return int(uint32_t(uint64_t(2 * uint32_t(n)) * d.factor >> 32) >> d.shift);
}

// Pixels of N images that a window reads for each of P × Q places: (p·stride + first + (r·tap_h,
// s·tap_w)) for the taps (r, s) of R × S. Each has C channels.
struct PixelGrid {
    const void* data;
    int N, H, W, R;
    Divisor P, Q, S, C;
    int tap_h = 1, tap_w = 1, stride_h = 1, stride_w = 1, first_h = 0, first_w = 0;
};

// Number i of a tensor, counted in packs of neighbouring channels.
struct Pixel {
    int n, h, w, c;
};
struct Pixels {
    size_t count;  // of the packs
    int wide;
    Divisor packs, W, H;

    Pixels(Shape s, int wide)
        : count(s.elems() / size_t(wide)), wide(wide), packs(s.C / wide), W(s.W), H(s.H) {
        ENSURE(count <= INT32_MAX, "a tensor ", s.text(), " in packs of ", wide);
    }
    __device__ __forceinline__ Pixel operator[](size_t i) const {
        const int pixel = int(i) / packs, row = pixel / W, n = row / H;
        return {n, row - n * H.by, pixel - row * W.by, (int(i) - pixel * packs.by) * wide};
    }
};
__device__ __forceinline__ size_t index(Shape s, int n, int h, int w, int c) {
    return ((size_t(n) * s.H + h) * s.W + w) * s.C + c;
}

}  // namespace convoy::CONVOY_DEVICE
