// column_sums.cu — sums[c] += Σ over rows of x[row][c]: the gradient of a bias.
//
//   grid    slabs of rows, and blocks of 256 threads (moments.cuh): threadIdx.x walks packs of
//           channels, so neighbours read neighbours; threadIdx.y strides over the rows of the slab.
//   bytes   4·rows·C (2·rows·C of bf16) read once: bound by memory.
//   order   rows of a thread, the threads of a column, then the slabs likewise; by shapes alone.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/moments.cuh"

namespace convoy::CONVOY_DEVICE {

namespace {

template <class T, int kWide>
__global__ void column_sums_kernel(const T* __restrict__ x, int64_t rows, int C,
                                   float* __restrict__ parts) {
    const int c = first_channel<kWide>();
    const int64_t begin = rows * blockIdx.y / gridDim.y, end = rows * (blockIdx.y + 1) / gridDim.y;
    float sums[kWide] = {};
#pragma unroll 4
    for (int64_t row = begin + threadIdx.y; row < end && c < C; row += blockDim.y) {
        float v[kWide];
        load_pack(v, x + row * C + c);
#pragma unroll
        for (int e = 0; e < kWide; ++e) sums[e] += v[e];
    }
    add_columns(sums);
    if (threadIdx.y > 0 || c >= C) return;
    for (int e = 0; e < kWide; ++e) parts[size_t(blockIdx.y) * C + c + e] = sums[e];
}

__global__ void add_slabs_kernel(const float* __restrict__ parts, int slabs, int C, float* sums) {
    const int c = first_channel<1>();
    float sum[1] = {};
    for (int slab = threadIdx.y; slab < slabs && c < C; slab += blockDim.y)
        sum[0] += parts[size_t(slab) * C + c];
    add_columns(sum);
    if (threadIdx.y == 0 && c < C) sums[c] += sum[0];
}

}  // namespace

void CudaBackend::add_column_sums(Tensor x, float* sums) {
    if (x.elems() == 0) return;
    const int C = x.C;
    const int64_t rows = int64_t(x.elems()) / C;
    const int slabs = int(std::min<int64_t>(256, ceil_div(rows, 64)));
    float* parts = memory_.scratch<float>(kSlotSums, size_t(slabs) * C);
    with_columns({x}, unsigned(slabs), [&]<class T>(T, auto wide, dim3 grid, dim3 block) {
        column_sums_kernel<T, wide()><<<grid, block, 0, stream_>>>(elements<T>(x), rows, C, parts);
        CUDA_LAUNCHED();
    });
    const dim3 block = column_block(std::min(C, 8));  // few side by side: the slabs are many
    add_slabs_kernel<<<ceil_div(C, block.x), block, 0, stream_>>>(parts, slabs, C, sums);
    CUDA_LAUNCHED();
}

}  // namespace convoy::CONVOY_DEVICE
