// probe_kernels.cu — see probe_kernels.h. Every number says where it came from: shared or global
// memory holds its own index. The emulator does not have these instructions.
#include "tests/probe_kernels.h"

#include <cmath>

#include "kernels/cuda/cuda.h"

#ifdef __CUDACC__

namespace convoy::cuda {

namespace {

// CUtensorMap of the driver, which is opened at run time.
struct alignas(64) TensorMap {
    uint64_t words[16];
};
constexpr int kUint16 = 1;  // CU_TENSOR_MAP_DATA_TYPE_UINT16
// Bytes of a row that a swizzle mixes, by CUtensorMapSwizzle; 0: none.
constexpr int kSwizzled[] = {0, 32, 64, 128};

// Where chunk (16 bytes) `chunk` of `row` is, by the mode; rows are kSwizzled bytes long.
__host__ __device__ int swizzled(int mode, int row, int chunk) {
    const int turns[] = {0, row / 4 % 2, row / 2 % 4, row % 8};
    return chunk ^ turns[mode];
}

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PROBE_PTX(...) asm volatile(__VA_ARGS__)
#else
#define PROBE_PTX(...) __trap()
#endif

__device__ unsigned place_of(const void* shared) {
    return unsigned(__cvta_generic_to_shared(shared));
}

// ---- mbarrier and copies by tensor maps ------------------------------------------------------

__device__ void make_barrier(uint64_t* barrier) {
    if (threadIdx.x == 0) {
        PROBE_PTX("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(place_of(barrier)));
        PROBE_PTX("fence.mbarrier_init.release.cluster;" :::);
    }
    __syncthreads();
}
__device__ void expect_bytes(uint64_t* barrier, int bytes) {
    PROBE_PTX("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(place_of(barrier)),
              "r"(bytes)
              : "memory");
}
// Whether the phase of this parity is over; waits for it for some time.
__device__ unsigned is_over(uint64_t* barrier, int parity) {
    unsigned over = 0;
    PROBE_PTX(
        "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, "
        "p;}"
        : "=r"(over)
        : "r"(place_of(barrier)), "r"(parity)
        : "memory");
    return over;
}

// out: whether phases 0 and 1 are over, before and after the one arrival, and after a second one.
__global__ void barrier_kernel(int* out) {
    __shared__ __align__(8) uint64_t barrier;
    make_barrier(&barrier);
    for (int arrivals = 0; arrivals < 3; ++arrivals) {
        if (arrivals) expect_bytes(&barrier, 0);
        for (int parity = 0; parity < 2; ++parity)
            out[2 * arrivals + parity] = is_over(&barrier, parity);
    }
}

// Brings a tile to shared memory and writes all of that to out. r < 0: of a matrix, at (x, y); else
// pixels from (n, y, x) on, seen through tap (r, s).
__global__ void copy_kernel(const __grid_constant__ TensorMap map, int bytes, int x, int y, int n,
                            int r, int s, uint16_t* out) {
    __shared__ __align__(1024) uint16_t tile[2048];
    __shared__ __align__(8) uint64_t barrier;
    make_barrier(&barrier);
    if (threadIdx.x == 0) {
        expect_bytes(&barrier, bytes);
        if (r < 0)
            PROBE_PTX(
                "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                "[%0], [%1, {%2, %3}], [%4];" ::"r"(place_of(tile)),
                "l"(&map), "r"(x), "r"(y), "r"(place_of(&barrier))
                : "memory");
        else
            PROBE_PTX(
                "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::"
                "bytes "
                "[%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};" ::"r"(place_of(tile)),
                "l"(&map), "r"(0), "r"(x), "r"(y), "r"(n), "r"(place_of(&barrier)), "h"(short(s)),
                "h"(short(r))
                : "memory");
    }
    for (int tries = 0; tries < 1000 && !is_over(&barrier, 0);) ++tries;
    for (int i = threadIdx.x; i < bytes / 2; i += blockDim.x) out[i] = tile[i];
}

// ---- wgmma -----------------------------------------------------------------------------------

// d[64][8] = a[64][16]·b[8][16]ᵀ, where shared memory `a` holds its own indices (i % 256, or i /
// 256 in the second pass) and b picks depth 8·half + column: d tells which number is read as
// a[row][depth].
__global__ void wgmma_kernel(int mode, int half, bool upper, float* out) {
    __shared__ __align__(1024) __nv_bfloat16 a[4096];
    __shared__ __align__(1024) __nv_bfloat16 b[128];  // [depth / 8][column][depth % 8]
    const int thread = threadIdx.x;
    for (int i = thread; i < 4096; i += 128) a[i] = float(upper ? i / 256 : i % 256);
    b[thread] = thread / 64 == half && thread / 8 % 8 == thread % 8 ? 1.0f : 0.0f;
    PROBE_PTX("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    const int row_bytes[] = {32, 32, 64, 128}, code[] = {0, 3, 2, 1};
    const auto describe = [](const void* data, uint64_t leading, uint64_t stride, uint64_t code) {
        return uint64_t(place_of(data) / 16) | leading / 16 << 16 | stride / 16 << 32 | code << 62;
    };
    const uint64_t a_there = describe(a, mode ? 16 : 128, 8 * row_bytes[mode], code[mode]);
    const uint64_t b_there = describe(b, 128, 256, 0);
    float d[4] = {};
    PROBE_PTX("wgmma.fence.sync.aligned;" ::: "memory");
    PROBE_PTX(
        "{.reg .pred p; setp.ne.b32 p, %6, 0; "
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, p, 1, 1, 0, 0;}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "l"(a_there), "l"(b_there), "r"(0));
    PROBE_PTX("wgmma.commit_group.sync.aligned;" ::: "memory");
    PROBE_PTX("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int e = 0; e < 4; ++e) {
        const int row = thread / 32 * 16 + thread % 32 / 4 + e / 2 * 8;
        out[row * 16 + half * 8 + thread % 4 * 2 + e % 2] = d[e];
    }
}

// The ceiling of wgmma: two groups of warps multiply random bits in shared memory, each in two
// chains of d[64][128] += a[64][16]·b[128][16]ᵀ.
constexpr int kPeakChains = 2, kPeakRounds = 4'000;

__device__ void wgmma_64x128(float (&d)[64], uint64_t a, uint64_t b) {
#define FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)
    PROBE_PTX(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, %64, %65, 1, 1, 1, 0, 0;"
        : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48)
        : "l"(a), "l"(b));
#undef SIXTEEN
#undef FOUR
}

__global__ void wgmma_peak_kernel(float* out) {
    __shared__ __align__(1024) uint32_t numbers[1024 + 2048];  // 64×32 of a, 128×32 of b
    // As in peak.cu: pairs of bf16 between -1 and 1.
    for (int i = threadIdx.x; i < 3072; i += blockDim.x) {
        unsigned bits = (i + 1) * 2654435761u;
        bits = (bits ^ bits >> 15) * 2246822519u;
        numbers[i] = ((bits ^ bits >> 13) & 0x807F807Fu) | 0x3F003F00u;
    }
    PROBE_PTX("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    const auto describe = [](const void* data) {
        return uint64_t(place_of(data) / 16) | uint64_t(128 / 16) << 16 | uint64_t(256 / 16) << 32;
    };
    float d[kPeakChains][64] = {};
    for (int round = 0; round < kPeakRounds; ++round) {
        PROBE_PTX("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int chain = 0; chain < kPeakChains; ++chain)
            wgmma_64x128(d[chain], describe(numbers + 512 * chain),
                         describe(numbers + 1024 + 1024 * chain));
        PROBE_PTX("wgmma.commit_group.sync.aligned;" ::: "memory");
        PROBE_PTX("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    }
    PROBE_PTX("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    float sum = 0;
    for (int chain = 0; chain < kPeakChains; ++chain)
        for (float each : d[chain]) sum += each;
    if (sum == 0.12345f) *out = sum;
}

// ---- the host --------------------------------------------------------------------------------

template <class T>
struct DeviceArray {
    explicit DeviceArray(const std::vector<T>& x) : size(x.size()) {
        CUDA_CHECK(cudaMalloc(&data, size * sizeof(T)));
        CUDA_CHECK(cudaMemcpy(data, x.data(), size * sizeof(T), cudaMemcpyHostToDevice));
    }
    ~DeviceArray() { (void)cudaFree(data); }
    std::vector<int> numbers() const {
        std::vector<T> x(size);
        CUDA_CHECK(cudaMemcpy(x.data(), data, size * sizeof(T), cudaMemcpyDeviceToHost));
        return {x.begin(), x.end()};
    }
    T* data = nullptr;
    size_t size;
};

template <class... Arguments>
TensorMap make_map(const char* function, Arguments... arguments) {
    using Encode = int (*)(TensorMap*, Arguments...);
    void* found = nullptr;
    CUDA_CHECK(
        cudaGetDriverEntryPointByVersion(function, &found, 12000, cudaEnableDefault, nullptr));
    TensorMap map{};
    const int error = found ? reinterpret_cast<Encode>(found)(&map, arguments...) : -1;
    if (error) fail(function, ": ", error);
    return map;
}
std::vector<uint16_t> counted(int n) {  // 1, 2, …: a 0 was out of bounds
    std::vector<uint16_t> x(n);
    for (int i = 0; i < n; ++i) x[i] = uint16_t(i + 1);
    return x;
}

// A box of 8 rows from a matrix of 16 × 64, at rows 4 and -3 (which begins with zeros).
Probe probe_tile(int mode, int y) {
    const DeviceArray matrix(counted(16 * 64));
    const int columns = mode ? kSwizzled[mode] / 2 : 16;
    const uint64_t sizes[] = {64, 16}, strides[] = {128};
    const uint32_t box[] = {uint32_t(columns), 8}, ones[] = {1, 1};
    const TensorMap map =
        make_map("cuTensorMapEncodeTiled", kUint16, 2u, static_cast<void*>(matrix.data), sizes + 0,
                 strides + 0, box + 0, ones + 0, 0, mode, 0, 0);
    const DeviceArray<uint16_t> out(std::vector<uint16_t>(8 * columns));
    copy_kernel<<<1, 32>>>(map, 16 * columns, 0, y, 0, -1, 0, out.data);
    CUDA_LAUNCHED();
    Probe probe{cat("tile at row ", y, ", swizzle of ", kSwizzled[mode], " bytes"), out.numbers(),
                std::vector<int>(8 * columns)};
    for (int row = 0; row < 8; ++row)
        for (int c = 0; c < columns; ++c)
            probe.want[row * columns + swizzled(mode, row, c / 8) * 8 + c % 8] =
                y + row < 0 ? 0 : (y + row) * 64 + c + 1;
    return probe;
}

// 16 pixels of two images 5 × 6 of 8 channels, for tap (r, s) of a 3x3 window with padding 1.
Probe probe_patches(int first, int r, int s) {
    constexpr int N = 2, H = 5, W = 6, C = 8;
    const DeviceArray x(counted(N * H * W * C));
    const uint64_t sizes[] = {C, W, H, N}, strides[] = {C * 2, W * C * 2, H * W * C * 2};
    const int lower[] = {-1, -1}, upper[] = {-1, -1};
    const uint32_t ones[] = {1, 1, 1, 1};
    const TensorMap map =
        make_map("cuTensorMapEncodeIm2col", kUint16, 4u, static_cast<void*>(x.data), sizes + 0,
                 strides + 0, lower + 0, upper + 0, uint32_t(C), 16u, ones + 0, 0, 0, 0, 0);
    const DeviceArray<uint16_t> out(std::vector<uint16_t>(16 * C));
    copy_kernel<<<1, 32>>>(map, 32 * C, first % W - 1, first / W % H - 1, first / W / H, r, s,
                           out.data);
    CUDA_LAUNCHED();
    Probe probe{cat("patches from pixel ", first, ", tap ", r, ",", s), out.numbers(), {}};
    for (int i = first; i < first + 16; ++i)
        for (int c = 0; c < C; ++c) {
            const int n = i / W / H, h = i / W % H - 1 + r, w = i % W - 1 + s;
            const bool inside = n < N && h >= 0 && w >= 0 && h < H && w < W;
            probe.want.push_back(inside ? ((n * H + h) * W + w) * C + c + 1 : 0);
        }
    return probe;
}

Probe probe_wgmma(int mode) {
    Probe probe{cat("wgmma, swizzle of ", kSwizzled[mode], " bytes"), std::vector<int>(1024), {}};
    for (bool upper : {false, true}) {
        const DeviceArray<float> out(std::vector<float>(1024, -1));
        for (int half : {0, 1}) wgmma_kernel<<<1, 128>>>(mode, half, upper, out.data);
        CUDA_LAUNCHED();
        const std::vector<int> part = out.numbers();
        for (int i = 0; i < 1024; ++i) probe.got[i] += part[i] * (upper ? 256 : 1);
    }
    for (int i = 0; i < 1024; ++i) {
        const int row = i / 16, chunk = i % 16 / 8, each = i % 8;
        probe.want.push_back(mode
                                 ? row * kSwizzled[mode] / 2 + swizzled(mode, row, chunk) * 8 + each
                                 : row / 8 * 128 + chunk * 64 + row % 8 * 8 + each);
    }
    return probe;
}

}  // namespace

static bool has_wgmma() {
    cudaDeviceProp properties;
    CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
    cudaFuncAttributes code;
    CUDA_CHECK(cudaFuncGetAttributes(&code, wgmma_kernel));
    return properties.major == 9 && code.binaryVersion == 90;
}

double wgmma_peak_gflops() {
    if (!has_wgmma()) return 0;
    cudaDeviceProp properties;
    CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
    const int blocks = properties.multiProcessorCount, threads = 256;
    const DeviceArray<float> out(std::vector<float>(1));
    cudaEvent_t begin, end;
    CUDA_CHECK(cudaEventCreate(&begin));
    CUDA_CHECK(cudaEventCreate(&end));
    float best = INFINITY;  // milliseconds; the first run wakes the clocks
    for (int run = 0; run < 4; ++run) {
        CUDA_CHECK(cudaEventRecord(begin));
        wgmma_peak_kernel<<<blocks, threads>>>(out.data);
        CUDA_LAUNCHED();
        CUDA_CHECK(cudaEventRecord(end));
        CUDA_CHECK(cudaEventSynchronize(end));
        float time = 0;
        CUDA_CHECK(cudaEventElapsedTime(&time, begin, end));
        if (run > 0) best = std::min(best, time);
    }
    CUDA_CHECK(cudaEventDestroy(begin));
    CUDA_CHECK(cudaEventDestroy(end));
    return 2.0 * 64 * 128 * 16 * kPeakChains * kPeakRounds * (threads / 128) * blocks / best / 1e6;
}

std::vector<Probe> run_probes() {
    if (!has_wgmma()) return {};
    const DeviceArray<int> out(std::vector<int>(6, -1));
    barrier_kernel<<<1, 1>>>(out.data);
    CUDA_LAUNCHED();
    // A parity is over if the phase of it came before the current one.
    std::vector<Probe> probes{{"mbarrier", out.numbers(), {0, 1, 1, 0, 0, 1}}};
    for (int mode = 0; mode < 4; ++mode) probes.push_back(probe_wgmma(mode));
    for (int mode = 0; mode < 4; ++mode)
        for (int y : {4, -3}) probes.push_back(probe_tile(mode, y));
    for (int first : {0, 25, 50})
        for (int tap : {0, 4, 8}) probes.push_back(probe_patches(first, tap / 3, tap % 3));
    return probes;
}

}  // namespace convoy::cuda

#endif
