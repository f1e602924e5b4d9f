// cuda.h — the one include of every file here: CUDA on a GPU, or its emulator on the CPU.
//
// Each .cu is compiled twice, by nvcc into namespace convoy::cuda and by g++ into convoy::simt
// (kernels/simt has the same names and runs on the CPU). So one binary has both. The sources are
// plain CUDA and do not know which compiler reads them.
#pragma once

#include "src/base/check.h"

#ifdef __CUDACC__
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#define CONVOY_DEVICE cuda
#else
#include "kernels/simt/emulator.h"
#include "kernels/simt/runtime.h"
#define CONVOY_DEVICE simt
#define CONVOY_MACHINE_CODE ""
#endif

namespace convoy::CONVOY_DEVICE {

#ifdef __CUDACC__
constexpr bool kIsEmulator = false;
inline void set_workers(int) {}
#else
constexpr bool kIsEmulator = true;
#endif

inline void cuda_check(cudaError_t error, const char* call, const char* file, int line) {
    if (error == cudaSuccess) return;
    (void)cudaGetLastError();  // or the next launch would report it once more
    fail(file, ":", line, ": ", call, ": ", cudaGetErrorName(error), ", ",
         cudaGetErrorString(error));
}
// CUDA_CHECK goes around each call of the runtime, CUDA_LAUNCHED after each launch.
#define CUDA_CHECK(call) ::convoy::CONVOY_DEVICE::cuda_check((call), #call, __FILE__, __LINE__)
#define CUDA_LAUNCHED() CUDA_CHECK(cudaGetLastError())

// Whether this program's code for the GPU has CopyBarrier and GroupProducts (mma.cuh).
bool has_group_products(const cudaDeviceProp& gpu);

// for (size_t i = first_index(); i < n; i += grid_width()): neighbouring threads take neighbours.
__device__ __forceinline__ size_t first_index() {
    return blockIdx.x * size_t(blockDim.x) + threadIdx.x;
}
__device__ __forceinline__ size_t grid_width() { return size_t(gridDim.x) * blockDim.x; }

__host__ __device__ constexpr int ceil_div(int64_t n, int64_t by) { return int((n + by - 1) / by); }

}  // namespace convoy::CONVOY_DEVICE
