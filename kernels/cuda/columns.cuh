// columns.cuh — blocks of 32×8 threads over a matrix of rows × C, for what is taken column by
// column: threadIdx.x walks c, so a warp reads 32 neighbouring floats; threadIdx.y walks rows.
#pragma once

#include "kernels/cuda/numbers.h"

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

// f(T(), 4 or 1, grid) for tensors of one type and shape. Halves are taken four at a time where
// that can be: a lane's 8 bytes are what keeps the memory busy.
template <class F>
void with_columns(std::initializer_list<Tensor> tensors, unsigned slabs, F&& f) {
    const Tensor first = *tensors.begin();
    const auto launch = [&](auto type, auto wide) {
        f(type, wide, dim3(ceil_div(first.C, kLanes * wide()), slabs));
    };
    if (first.type == Type::kFloat32) return launch(0.0f, std::integral_constant<int, 1>());
    with_pack(tensors, [&](auto wide) { launch(bf16(0.0f), wide); });
}

}  // namespace convoy::CONVOY_DEVICE
