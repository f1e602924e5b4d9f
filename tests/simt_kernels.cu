// simt_kernels.cu — see simt_kernels.h.
#include "tests/simt_kernels.h"

#include <memory>

#include "tests/device_memory.cuh"

namespace convoy::CONVOY_DEVICE {

namespace {

__global__ void reverse_kernel(const float* __restrict__ x, float* __restrict__ y) {
    __shared__ float tile[256];
    tile[threadIdx.x] = x[threadIdx.x];  // and no barrier
    y[threadIdx.x] = tile[255 - threadIdx.x];
}

struct Sum {
    int n;
    const int* x;
    int* total;
};
__global__ void struct_kernel(Sum sum) {
    for (int i = 0; i < sum.n; ++i) *sum.total += sum.x[i];
}

// ---- wrong ones ----------------------------------------------------------------------------

__global__ void barrier_in_branch_kernel(float* x) {
    if (threadIdx.x < 7) __syncthreads();
    x[threadIdx.x] = 1;
}
__global__ void early_exit_kernel(float* x) {
    if (threadIdx.x == 33) return;
    __syncthreads();
    x[threadIdx.x] = 1;
}
__global__ void two_barriers_kernel(float* x) {
    if (threadIdx.x % 2)
        __syncthreads();
    else
        __syncthreads();
    x[threadIdx.x] = 1;
}
__global__ void absent_lane_kernel(int* x) {
    if (threadIdx.x < 16) x[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFFu, int(threadIdx.x), 1);
}
__global__ void absent_caller_kernel(int* x) {
    x[threadIdx.x] = __shfl_xor_sync(0x0000FFFFu, int(threadIdx.x), 1);
}
__global__ void absent_source_kernel(int* x) {
    if (threadIdx.x < 16) x[threadIdx.x] = __shfl_xor_sync(0x0000FFFFu, int(threadIdx.x), 16);
}
__global__ void misaligned_kernel(const float* x, float* y) {
    const float4 v = *reinterpret_cast<const float4*>(x + threadIdx.x);
    y[threadIdx.x] = v.x + v.y + v.z + v.w;
}
__global__ void write_kernel(float* x, int i) {
    if (threadIdx.x == 3) x[i] = 1;
}
__global__ void shared_bounds_kernel(float* x, int i) {
    __shared__ float tile[64];
    tile[threadIdx.x + i] = 1;
    __syncthreads();
    x[threadIdx.x] = tile[threadIdx.x];
}
__global__ void misaligned_shared_kernel(float* x) {
    __shared__ float tile[64];
    *reinterpret_cast<float4*>(tile) = float4{1, 2, 3, 4};
    x[threadIdx.x] = tile[threadIdx.x];
}
__global__ void large_shared_kernel(float* x) {
    __shared__ float first[6000];
    __shared__ __align__(16) float4 second[1600];
    first[threadIdx.x] = second[threadIdx.x].x;
    x[threadIdx.x] = first[63 - threadIdx.x];
}
__global__ void dynamic_bounds_kernel(float* x, int i) {
    extern __shared__ float tile[];
    tile[threadIdx.x + i] = 1;
    __syncthreads();
    x[threadIdx.x] = tile[threadIdx.x];
}

}  // namespace

std::vector<float> reversed_without_barrier(const std::vector<float>& x) {
    Device<float> from(x), to(x.size());
    reverse_kernel<<<1, 256>>>(from.data, to.data);
    CUDA_LAUNCHED();
    return to.host();
}

int sum_through_struct(const std::vector<int>& x, bool freed) {
    Device<int> total(std::vector<int>{0});
    auto from = std::make_unique<Device<int>>(x);
    const Sum sum{int(x.size()), from->data, total.data};
    if (freed) from.reset();
    struct_kernel<<<1, 1>>>(sum);
    CUDA_LAUNCHED();
    return total.host()[0];
}

void launch_wrong(const std::string& what) {
    Device<float> x(64), y(64);
    Device<int> n(64);
    std::vector<float> host(64);
    if (what == "barrier") barrier_in_branch_kernel<<<3, 64>>>(x.data);
    if (what == "early exit") early_exit_kernel<<<1, 64>>>(x.data);
    if (what == "two barriers") two_barriers_kernel<<<1, 64>>>(x.data);
    if (what == "mask") absent_lane_kernel<<<1, 32>>>(n.data);
    if (what == "caller") absent_caller_kernel<<<1, 32>>>(n.data);
    if (what == "source") absent_source_kernel<<<1, 32>>>(n.data);
    if (what == "misaligned") misaligned_kernel<<<1, 4>>>(x.data, y.data);
    if (what == "misaligned shared") misaligned_shared_kernel<<<1, 4>>>(x.data);
    if (what == "large shared") large_shared_kernel<<<1, 64>>>(x.data);
    if (what == "threads") write_kernel<<<1, 1025>>>(x.data, 0);
    if (what == "grid") write_kernel<<<dim3(1, 65536), 64>>>(x.data, 0);
    if (what == "no blocks") write_kernel<<<0, 64>>>(x.data, 0);
    if (what == "dynamic") write_kernel<<<1, 64, 48 * 1024 + 4>>>(x.data, 0);
    if (what == "too much")
        CUDA_CHECK(cudaFuncSetAttribute(write_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        228 * 1024));
    if (what == "host") write_kernel<<<1, 64>>>(host.data(), 0);
    if (what == "no shared") dynamic_bounds_kernel<<<1, 64>>>(x.data, 0);
    if (what == "global bounds") write_kernel<<<1, 64>>>(x.data, 64);
    if (what == "shared bounds") shared_bounds_kernel<<<1, 64>>>(x.data, 1);
    if (what == "dynamic bounds") dynamic_bounds_kernel<<<1, 64, 256>>>(x.data, 1);
    if (what == "graph") {
        struct Recording {
            cudaStream_t stream = nullptr;
            cudaGraph_t graph = nullptr;
            ~Recording() { (void)cudaGraphDestroy(graph), (void)cudaStreamDestroy(stream); }
        } r;
        CUDA_CHECK(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking));
        CUDA_CHECK(cudaStreamBeginCapture(r.stream, cudaStreamCaptureModeRelaxed));
        {
            Device<float> gone(64);
            write_kernel<<<1, 64, 0, r.stream>>>(gone.data, 0);
        }
        CUDA_CHECK(cudaStreamEndCapture(r.stream, &r.graph));
        CUDA_CHECK(cudaGraphLaunch(r.graph, r.stream));
    }
    CUDA_LAUNCHED();
}

}  // namespace convoy::CONVOY_DEVICE
