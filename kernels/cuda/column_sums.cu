// column_sums.cu — sums[c] += Σ over rows of x[row][c]: the gradient of a bias.
//
//   grid    (⌈C/32⌉, slabs) blocks of 32×8 threads: threadIdx.x walks c, so a warp reads 32
//           neighbouring floats; threadIdx.y strides over the rows of the slab. Of bf16 a thread
//           takes four channels, where they come in fours.
//   bytes   4·rows·C (2·rows·C of bf16) read once: bound by memory.
//   order   rows of a thread, the 8 threads of a column, then slabs, each in order; the slabs
//           depend on shapes alone.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/moments.cuh"

namespace convoy::CONVOY_DEVICE {

namespace {

template <class T, int kWide>
__global__ void column_sums_kernel(const T* __restrict__ x, int64_t rows, int C,
                                   float* __restrict__ parts) {
    const int c = int(blockIdx.x * kLanes + threadIdx.x) * kWide;
    const int64_t begin = rows * blockIdx.y / gridDim.y, end = rows * (blockIdx.y + 1) / gridDim.y;
    float sums[kWide] = {};
    if (c < C)
        for (int64_t row = begin + threadIdx.y; row < end; row += kRows) {
            float v[kWide];
            load_pack(v, x + row * C + c);
#pragma unroll
            for (int e = 0; e < kWide; ++e) sums[e] += v[e];
        }
    add_columns(sums);
    if (threadIdx.y > 0 || c >= C) return;
    for (int e = 0; e < kWide; ++e) parts[size_t(blockIdx.y) * C + c + e] = sums[e];
}

__global__ void add_parts_kernel(const float* parts, int slabs, int C, float* sums) {
    const size_t c = first_index();
    if (c >= size_t(C)) return;
    float sum = 0;
    for (int slab = 0; slab < slabs; ++slab) sum += parts[size_t(slab) * C + c];
    sums[c] += sum;
}

}  // namespace

void CudaBackend::add_column_sums(Tensor x, float* sums) {
    if (x.elems() == 0) return;
    const int C = x.C;
    const int64_t rows = int64_t(x.elems()) / C;
    const int slabs = int(std::min<int64_t>(256, ceil_div(rows, 64)));
    float* parts = memory_.scratch<float>(kSlotSums, size_t(slabs) * C);
    with_columns({x}, unsigned(slabs), [&](auto type, auto wide, dim3 grid) {
        using T = decltype(type);
        column_sums_kernel<T, wide()>
            <<<grid, dim3(kLanes, kRows), 0, stream_>>>(numbers<T>(x), rows, C, parts);
        CUDA_LAUNCHED();
    });
    add_parts_kernel<<<ceil_div(C, 128), 128, 0, stream_>>>(parts, slabs, C, sums);
    CUDA_LAUNCHED();
}

}  // namespace convoy::CONVOY_DEVICE
