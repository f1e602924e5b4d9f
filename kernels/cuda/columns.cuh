// columns.cuh — blocks of 32×8 threads over a matrix of rows × C, for what is taken column by
// column: threadIdx.x walks c, so a warp reads 32 neighbouring floats; threadIdx.y walks rows.
#pragma once

#include "kernels/cuda/cuda.h"

namespace convoy::CONVOY_DEVICE {

constexpr int kLanes = 32, kRows = 8;

// Adds (a, b) of the 8 threads of each column, in order; the sums are the first thread's. All
// threads call; before they call again they must have met.
template <class T>
__device__ void add_column(T& a, T& b) {
    __shared__ T as[kRows][kLanes];
    __shared__ T bs[kRows][kLanes];
    as[threadIdx.y][threadIdx.x] = a, bs[threadIdx.y][threadIdx.x] = b;
    __syncthreads();  // all partial sums are there
    if (threadIdx.y > 0) return;
    for (int r = 1; r < kRows; ++r) a += as[r][threadIdx.x], b += bs[r][threadIdx.x];
}

}  // namespace convoy::CONVOY_DEVICE
