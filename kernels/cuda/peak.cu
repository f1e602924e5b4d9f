// peak.cu — multiply-adds on registers alone: the limit of every op in this precision.
//
//   fp32        8 chains a thread of x = a·x + b
//   tf32, bf16  8 chains a warp of d += a·b by the tensor cores (mma.sync, as the ops use them;
//               neither uses the instructions that compute capability 9.0 adds)
//   grid        2 blocks of 256 threads a multiprocessor: 4 warps for each of its schedulers hide
//               the latency of the instructions, as do the chains.
//   bytes       none.
//   numbers     random bits: on zeros a GPU draws less power, and is faster than any op can be.
#include <algorithm>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/mma.cuh"

namespace convoy::CONVOY_DEVICE {

namespace {

constexpr int kChains = 8;

// A number in (-1, 1) with random bits, other ones for each thread and each i; read as a pair of
// bf16, both are such numbers too.
__device__ __forceinline__ float random_number(int i) {
    unsigned bits = (threadIdx.x * 64 + i + 1) * 2654435761u;
    bits = (bits ^ bits >> 15) * 2246822519u;
    return __uint_as_float(((bits ^ bits >> 13) & 0x807F807Fu) | 0x3F003F00u);
}

// The comparison keeps the compiler from removing the sums. With a = -1 the numbers never settle:
// x becomes b - x, and x again.
__global__ void fma_chains_kernel(int rounds, float a, float* out) {
    float x[kChains];
    const float b = random_number(kChains);
    for (int i = 0; i < kChains; ++i) x[i] = random_number(i);
    for (int round = 0; round < rounds; ++round)
#pragma unroll
        for (int i = 0; i < kChains; ++i) x[i] = a * x[i] + b;
    float sum = 0;
    for (int i = 0; i < kChains; ++i) sum += x[i];
    if (sum == 0.12345f) *out = sum;
}

template <bool kBf16>
__global__ void mma_chains_kernel(int rounds, float* out) {
    float d[kChains][4] = {};
    uint32_t a[2][4], b[4][2];  // as of a warp's tile: neighbouring instructions differ in one
    for (int e = 0; e < 8; ++e) {
        a[e / 4][e % 4] = __float_as_uint(random_number(e));
        b[e / 2][e % 2] = __float_as_uint(random_number(8 + e));
    }
    for (int round = 0; round < rounds; ++round)
#pragma unroll
        for (int i = 0; i < kChains; ++i) mma<kBf16>(d[i], a[i / 4], b[i % 4]);
    float sum = 0;
    for (int i = 0; i < kChains; ++i) sum += d[i][0];
    if (sum == 0.12345f) *out = sum;
}

}  // namespace

double CudaBackend::measure_peak_gflops() {
    // About a millisecond on any GPU: the work grows with its multiprocessors.
    constexpr int kFmaRounds = kIsEmulator ? 16 : 60'000, kMmaRounds = kIsEmulator ? 2 : 8'000;
    const int blocks = 2 * processors_, threads = 256;
    float* out = memory_.scratch<float>(kSlotResult, 1);
    cudaEvent_t begin, end;
    CUDA_CHECK(cudaEventCreate(&begin));
    CUDA_CHECK(cudaEventCreate(&end));
    const int rounds = precision_ == Precision::kFp32 ? kFmaRounds : kMmaRounds;
    float best = INFINITY;               // milliseconds
    for (int run = 0; run < 4; ++run) {  // the first one wakes the clocks
        CUDA_CHECK(cudaEventRecord(begin, stream_));
        if (precision_ == Precision::kFp32)
            fma_chains_kernel<<<blocks, threads, 0, stream_>>>(rounds, -1, out);
        else if (precision_ == Precision::kTf32)
            mma_chains_kernel<false><<<blocks, threads, 0, stream_>>>(rounds, out);
        else
            mma_chains_kernel<true><<<blocks, threads, 0, stream_>>>(rounds, out);
        CUDA_LAUNCHED();
        CUDA_CHECK(cudaEventRecord(end, stream_));
        CUDA_CHECK(cudaEventSynchronize(end));
        float time = 0;
        CUDA_CHECK(cudaEventElapsedTime(&time, begin, end));
        if (run > 0) best = std::min(best, time);
    }
    CUDA_CHECK(cudaEventDestroy(begin));
    CUDA_CHECK(cudaEventDestroy(end));
    // Multiply-adds per thread, round and chain: the threads of a warp share an mma instruction.
    const double each[] = {1, 16 * 8 * 8 / 32.0, 16 * 8 * 16 / 32.0};
    return 2 * each[int(precision_)] * kChains * rounds * threads * blocks / best / 1e6;
}

}  // namespace convoy::CONVOY_DEVICE
