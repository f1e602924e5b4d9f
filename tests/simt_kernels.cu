// simt_kernels.cu — see simt_kernels.h.
#include "tests/simt_kernels.h"

#include <memory>
#include <numeric>

#include "kernels/cuda/cuda.h"

namespace convoy::CONVOY_DEVICE {

namespace {

// Device memory that goes away, filled from and read into vectors.
template <class T>
struct Device {
    T* data = nullptr;
    size_t n;
    explicit Device(size_t n) : n(n) { CUDA_CHECK(cudaMalloc(&data, n * sizeof(T))); }
    explicit Device(const std::vector<T>& x) : Device(x.size()) {
        CUDA_CHECK(cudaMemcpyAsync(data, x.data(), n * sizeof(T), cudaMemcpyHostToDevice));
    }
    Device(const Device&) = delete;
    ~Device() { (void)cudaFree(data); }
    std::vector<T> host() const {
        std::vector<T> x(n);
        CUDA_CHECK(cudaMemcpyAsync(x.data(), data, n * sizeof(T), cudaMemcpyDeviceToHost));
        CUDA_CHECK(cudaDeviceSynchronize());
        return x;
    }
};

template <bool kBarrier>
__global__ void reverse_kernel(const float* __restrict__ x, float* __restrict__ y) {
    __shared__ float tile[256];
    const unsigned i = blockIdx.x * 256 + threadIdx.x;
    tile[threadIdx.x] = x[i];
    if (kBarrier) __syncthreads();  // all of the tile is written
    y[i] = tile[255 - threadIdx.x];
}

__global__ void __launch_bounds__(128) sum_kernel(const int* x, int n, int* sums) {
    __shared__ int warps[4];
    int sum = 0;
    for (int i = blockIdx.x * 128 + threadIdx.x; i < n; i += gridDim.x * 128) sum += x[i];
    for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, by);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();  // all four sums are there
    if (threadIdx.x == 0) sums[blockIdx.x] = warps[0] + warps[1] + warps[2] + warps[3];
}

struct Sum {
    int n;
    const int* x;
    int* total;
};
__global__ void struct_kernel(Sum sum) {
    for (int i = 0; i < sum.n; ++i) *sum.total += sum.x[i];
}

__global__ void coordinates_kernel(int* seen) {
    extern __shared__ __align__(16) float row[];
    const int thread = threadIdx.x + 40 * (threadIdx.y + 3 * threadIdx.z);
    const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    int bits = 0;
    bits |= (blockDim.x == 40 && blockDim.y == 3 && blockDim.z == 2) << 0;
    bits |= (gridDim.x == 2 && gridDim.y == 3 && gridDim.z == 4) << 1;
    bits |= (row[thread] != row[thread]) << 2;  // shared memory holds nothing yet
    row[thread] = float(thread);
    __syncthreads();
    bits |= (row[239 - thread] == 239 - thread) << 3;
    seen[block * 240 + thread] = bits;
}

__global__ void shuffle_kernel(unsigned* out) {
    const unsigned lane = threadIdx.x;
    out[lane * 2] = __shfl_xor_sync(0xFFFFFFFFu, lane * 10, 5);
    // Two halves of the warp go their own ways.
    if (lane < 16)
        out[lane * 2 + 1] = __shfl_xor_sync(0x0000FFFFu, lane, 1);
    else
        out[lane * 2 + 1] = __shfl_xor_sync(0xFFFF0000u, lane, 2);
}

__global__ void bf16_kernel(const float* x, unsigned* bits, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const __nv_bfloat16 rounded = __float2bfloat16_rn(x[i]);
        bits[i] = __float_as_uint(__bfloat162float(rounded)) >> 16;
    }
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

std::vector<float> reverse_blocks(const std::vector<float>& x, bool with_barrier) {
    Device<float> from(x), to(x.size());
    const dim3 grid(unsigned(x.size() / 256));
    if (with_barrier)
        reverse_kernel<true><<<grid, 256>>>(from.data, to.data);
    else
        reverse_kernel<false><<<grid, 256>>>(from.data, to.data);
    CUDA_LAUNCHED();
    return to.host();
}

int sum_of(const std::vector<int>& x) {
    Device<int> from(x), sums(ceil_div(x.size(), 1000));
    sum_kernel<<<sums.n, 128>>>(from.data, int(x.size()), sums.data);
    CUDA_LAUNCHED();
    const std::vector<int> of_blocks = sums.host();
    return std::accumulate(of_blocks.begin(), of_blocks.end(), 0);
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

std::vector<int> coordinates_seen() {
    Device<int> seen(2 * 3 * 4 * 240);
    CUDA_CHECK(cudaMemsetAsync(seen.data, 0, seen.n * sizeof(int)));
    coordinates_kernel<<<dim3(2, 3, 4), dim3(40, 3, 2), 240 * sizeof(float)>>>(seen.data);
    CUDA_LAUNCHED();
    return seen.host();
}

std::vector<unsigned> shuffled() {
    Device<unsigned> out(32 * 2);
    shuffle_kernel<<<1, 32>>>(out.data);
    CUDA_LAUNCHED();
    return out.host();
}

std::vector<unsigned> rounded_to_bf16(const std::vector<float>& x) {
    Device<float> from(x);
    Device<unsigned> bits(x.size());
    bf16_kernel<<<1, 64>>>(from.data, bits.data, int(x.size()));
    CUDA_LAUNCHED();
    return bits.host();
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
