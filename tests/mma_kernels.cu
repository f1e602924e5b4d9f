// mma_kernels.cu — see mma_kernels.h.
#include "tests/mma_kernels.h"

#include "kernels/cuda/mma.cuh"
#include "tests/device_memory.cuh"

namespace convoy::CONVOY_DEVICE {

namespace {

// Which rows, columns and depths a lane holds is written out here once more, after the manual.
__global__ void mma_kernel(bool bf16, const float* a, const float* b, float* d) {
    const int lane = threadIdx.x, group = lane / 4, member = lane % 4, depth = bf16 ? 16 : 8;
    uint32_t a_own[4], b_own[2];
    float d_own[4];
    for (int i = 0; i < 4; ++i) {
        const int row = group + i % 2 * 8, l = bf16 ? member * 2 + i / 2 * 8 : member + i / 2 * 4;
        const float* at = a + row * depth + l;
        a_own[i] = bf16 ? to_bf16x2(at[0], at[1]) : to_tf32(at[0]);
        d_own[i] = d[(group + i / 2 * 8) * 8 + member * 2 + i % 2];
    }
    for (int i = 0; i < 2; ++i) {
        const int l = bf16 ? member * 2 + i * 8 : member + i * 4;
        const float* at = b + l * 8 + group;
        b_own[i] = bf16 ? to_bf16x2(at[0], at[8]) : to_tf32(at[0]);
    }
    if (bf16)
        mma<true>(d_own, a_own, b_own);
    else
        mma<false>(d_own, a_own, b_own);
    for (int i = 0; i < 4; ++i) d[(group + i / 2 * 8) * 8 + member * 2 + i % 2] = d_own[i];
}

__global__ void load_kernel(bool transposed, const uint16_t* matrices, uint32_t* words) {
    __shared__ __align__(16) uint16_t rows[32][8];
    const int lane = threadIdx.x;
    for (int i = 0; i < 8; ++i) rows[lane][i] = matrices[lane * 8 + i];
    __syncthreads();
    uint32_t own[4];
    if (transposed)
        load_matrices_transposed(own, rows[lane]);
    else
        load_matrices(own, rows[lane]);
    for (int i = 0; i < 4; ++i) words[lane * 4 + i] = own[i];
}

__global__ void copy_kernel(const float* x, float* seen) {
    __shared__ __align__(16) float tile[32][12];
    const int thread = threadIdx.x;
    const auto look = [&](int read) {
        for (int i = 0; i < 12; ++i) seen[(read * 32 + thread) * 12 + i] = tile[thread][i];
    };
    AsyncCopies copies;
    copies.copy(&tile[thread][0], x + thread * 4, true);
    copies.commit();
    copies.copy(&tile[thread][4], x + (32 + thread) * 4, true);
    copies.copy(&tile[thread][8], x, false);
    copies.commit();
    look(0);
    copies.wait<1>();
    look(1);
    copies.wait<0>();
    look(2);
}

__global__ void misaligned_copy_kernel(const float* x) {
    __shared__ __align__(16) float tile[4];
    AsyncCopies copies;
    copies.copy(tile, x + 1, true);
}

std::vector<float> one_mma(bool bf16, const std::vector<float>& a, const std::vector<float>& b,
                           const std::vector<float>& d) {
    const Device<float> a_there(a), b_there(b), d_there(d);
    mma_kernel<<<1, 32>>>(bf16, a_there.data, b_there.data, d_there.data);
    CUDA_LAUNCHED();
    return d_there.host();
}

std::vector<uint32_t> one_load(bool transposed, const std::vector<uint16_t>& matrices) {
    const Device<uint16_t> there(matrices);
    const Device<uint32_t> words(128);
    load_kernel<<<1, 32>>>(transposed, there.data, words.data);
    CUDA_LAUNCHED();
    return words.host();
}

std::vector<float> copies_seen(const std::vector<float>& x) {
    const Device<float> there(x), seen(3 * 32 * 12);
    copy_kernel<<<1, 32>>>(there.data, seen.data);
    CUDA_LAUNCHED();
    return seen.host();
}

void copy_misaligned() {
    const Device<float> x(8);
    misaligned_copy_kernel<<<1, 1>>>(x.data);
}

}  // namespace

MmaKernels mma_kernels() { return {one_mma, one_load, copies_seen, copy_misaligned}; }

}  // namespace convoy::CONVOY_DEVICE
