// gemm_ladder.cu — a product of matrices, six times: what makes it fast on a GPU, one step each.
//
//   c[i][j] = Σ_l a[i][l]·b[l][j]       a is I × L, b is L × J, c is I × J; all fp32, row after row
//
// To be read from top to bottom. "bytes" is what goes between the multiprocessors and the memory
// behind them (caches help where the same is asked for again): 2·I·J·L operations are to be done,
// and a GPU does 10 to 100 of them, on tensor cores many more, in the time in which it reads one
// byte. So every rung is about reading less for the same sums. The last rung is the kernel that
// trains.
#include "tests/lab/gemm_ladder.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/elements.h"
#include "kernels/cuda/make_backend.h"
#include "kernels/cuda/mma.cuh"
#include "src/base/clock.h"
#include "tests/lab/cublas.h"

namespace convoy::CONVOY_DEVICE {

namespace {

// Number (row, column) of a rows × columns matrix; 0 outside of it, which adds nothing to a sum.
__device__ __forceinline__ float at(const float* x, int rows, int columns, int row, int column) {
    return row < rows && column < columns ? x[size_t(row) * columns + column] : 0.0f;
}

// ---- 1. naive --------------------------------------------------------------------------------
//
//   mapping   a thread makes one c[i][j]; neighbouring threads (threadIdx.x) take neighbouring i.
//             Blocks of 32×8 threads, grid (⌈I/32⌉, ⌈J/8⌉).
//   bytes     8·I·J·L asked for: two numbers a product. Worse: the 32 threads of a warp read
//             32 rows of a, L floats apart, so 32 lines of 128 bytes for 32 numbers; likewise
//             what they write.
__global__ void naive_kernel(const float* __restrict__ a, const float* __restrict__ b,
                             float* __restrict__ c, int I, int J, int L) {
    const int i = blockIdx.x * 32 + threadIdx.x, j = blockIdx.y * 8 + threadIdx.y;
    if (i >= I || j >= J) return;
    float sum = 0;
    for (int l = 0; l < L; ++l) sum += a[size_t(i) * L + l] * b[size_t(l) * J + j];
    c[size_t(i) * J + j] = sum;
}

// ---- 2. coalesced ----------------------------------------------------------------------------
//
//   mapping   as before with i and j exchanged: neighbouring threads take neighbouring j. Grid
//             (⌈J/32⌉, ⌈I/8⌉).
//   bytes     still two numbers a product, but a warp now reads 32 neighbours of b, one line, and
//             a single number of a, which all its threads share.
//   gains     33 times fewer lines fetched a step, for one exchanged name.
__global__ void coalesced_kernel(const float* __restrict__ a, const float* __restrict__ b,
                                 float* __restrict__ c, int I, int J, int L) {
    const int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= I || j >= J) return;
    float sum = 0;
    for (int l = 0; l < L; ++l) sum += a[size_t(i) * L + l] * b[size_t(l) * J + j];
    c[size_t(i) * J + j] = sum;
}

// ---- 3. shared tile --------------------------------------------------------------------------
//
//   mapping   a block of 32×32 threads makes 32×32 numbers of c. It walks over l in steps of 32:
//             each thread fetches one number of a and one of b into shared memory, then all read
//             the 32 that they need from there.
//   bytes     4·L·(I·⌈J/32⌉ + J·⌈I/32⌉): a number fetched is used 32 times.
//   shared    8 KB. In the inner loop a warp reads one a_tile[i][l] (handed to all) and 32
//             neighbours of a row of b_tile (32 banks).
//   gains     32 times less from the memory behind; but two reads of shared memory for each
//             multiply-add are the limit now.
constexpr int kSide = 32;
__global__ void __launch_bounds__(kSide* kSide)
    shared_kernel(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c,
                  int I, int J, int L) {
    __shared__ float a_tile[kSide][kSide];
    __shared__ float b_tile[kSide][kSide];
    const int x = threadIdx.x, y = threadIdx.y;
    const int i = blockIdx.y * kSide + y, j = blockIdx.x * kSide + x;
    float sum = 0;
    for (int first = 0; first < L; first += kSide) {
        a_tile[y][x] = at(a, I, L, i, first + x);
        b_tile[y][x] = at(b, L, J, first + y, j);
        __syncthreads();  // both tiles are there
        for (int l = 0; l < kSide; ++l) sum += a_tile[y][l] * b_tile[l][x];
        __syncthreads();  // all have read; the next tiles may be stored
    }
    if (i < I && j < J) c[size_t(i) * J + j] = sum;
}

// ---- 4. register tile: kernels/cuda/gemm.cuh, the fp32 kernel that trains ---------------------
//
//   mapping   a block of 16×16 threads makes 128×128 numbers of c, in steps of 8 along l. A thread
//             keeps 8×8 sums in registers.
//   bytes     4·L·(I·⌈J/128⌉ + J·⌈I/128⌉).
//   shared    a step along l reads 16 numbers of it for 64 multiply-adds, four at a time: 4 instead
//             of 0.5 a number.
//   gains     8 times less from shared memory, 4 times less from behind it: now the multiply-adds
//             themselves are the limit, and 64 independent ones hide each other's latency.
//   named     "production" in fp32

// ---- 5. tensor cores -------------------------------------------------------------------------
//
//   mapping   a block of 4 warps makes 64×64 numbers of c, in steps of 16 along l; each warp 32×32
//             of them, as 2×4 tiles of 16×8. One instruction of a warp multiplies a 16×8 (bf16:
//             16×16) by an 8×8 (16×8) piece: 1,024 (2,048) multiply-adds. Which lane holds which
//             number: mma.cuh.
//   rounding  what is multiplied is rounded to tf32 (10 bits of mantissa) or bf16 (7 bits); sums
//             are fp32.
//   bytes     4·L·(I·⌈J/64⌉ + J·⌈I/64⌉).
//   shared    64 rows of a, 16 of b, with room between rows such that the 32 lanes of a warp read
//             32 different banks: lane (group, member) reads row group and number member of a, row
//             member and number group of b; of bf16 two neighbours of a row of a as one, and rows
//             2·member, 2·member+1 of b.
//   gains     a tensor core multiplies and adds 8 or more times what the fp32 units do. Nothing
//             keeps it busy here: it waits while tiles are fetched, and barriers stop all.
constexpr int kTile = 64, kDepth = 16;

// Rows row … row+15, all 16 depths of a: one fragment of bf16, or two of tf32.
template <bool kBf16, class Tile>
__device__ __forceinline__ void fragments_of_a(uint32_t (&to)[2][4], const Tile& tile, int row,
                                               int lane) {
    const int group = lane / 4, member = lane % 4;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
        const float* from = tile[row + group + e % 2 * 8];
        if constexpr (kBf16) {
            if (e >= 4) break;
            const float2 pair = *reinterpret_cast<const float2*>(from + 2 * member + e / 2 * 8);
            to[0][e] = to_bf16x2(pair.x, pair.y);
        } else {
            to[e / 4][e % 4] = to_tf32(from[member + e / 2 * 4]);
        }
    }
}
// All 16 depths, columns column … column+7 of b.
template <bool kBf16, class Tile>
__device__ __forceinline__ void fragments_of_b(uint32_t (&to)[2][2], const Tile& tile, int column,
                                               int lane) {
    const int own = column + lane / 4, member = lane % 4;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        if constexpr (kBf16) {
            if (e >= 2) break;
            const int depth = 2 * member + e * 8;
            to[0][e] = to_bf16x2(tile[depth][own], tile[depth + 1][own]);
        } else {
            to[e / 2][e % 2] = to_tf32(tile[member + e * 4][own]);
        }
    }
}

template <bool kBf16>
__global__ void __launch_bounds__(128)
    tensor_kernel(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c,
                  int I, int J, int L) {
    __shared__ __align__(16) float a_tile[kTile][kBf16 ? 24 : 20];
    __shared__ __align__(16) float b_tile[kDepth][kBf16 ? 68 : 72];
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const int i0 = blockIdx.y * kTile, j0 = blockIdx.x * kTile;
    const int row = warp / 2 * 32, column = warp % 2 * 32;
    float sums[2][4][4] = {};
    for (int first = 0; first < L; first += kDepth) {
        for (int e = thread; e < kTile * kDepth; e += 128) {
            a_tile[e / kDepth][e % kDepth] = at(a, I, L, i0 + e / kDepth, first + e % kDepth);
            b_tile[e / kTile][e % kTile] = at(b, L, J, first + e / kTile, j0 + e % kTile);
        }
        __syncthreads();  // both tiles are there
        uint32_t x[2][2][4], y[2][2];
        for (int m = 0; m < 2; ++m) fragments_of_a<kBf16>(x[m], a_tile, row + m * 16, lane);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            fragments_of_b<kBf16>(y, b_tile, column + n * 8, lane);
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                if constexpr (kBf16) {
                    mma<true>(sums[m][n], x[m][0], y[0]);
                } else {
                    mma<false>(sums[m][n], x[m][0], y[0]);
                    mma<false>(sums[m][n], x[m][1], y[1]);
                }
            }
        }
        __syncthreads();  // all have read; the next tiles may be stored
    }
    for (int m = 0; m < 2; ++m)
        for (int n = 0; n < 4; ++n)
            for (int e = 0; e < 4; ++e) {
                const int i = i0 + row + m * 16 + lane / 4 + e / 2 * 8;
                const int j = j0 + column + n * 8 + lane % 4 * 2 + e % 2;
                if (i < I && j < J) c[size_t(i) * J + j] = sums[m][n][e];
            }
}

// ---- 6. production ---------------------------------------------------------------------------
//
//   mapping   kernels/cuda/tensor_gemm.cuh (tf32, bf16), as a linear layer calls it in the backward
//             pass: dx[n,c] = Σ_k dy[n,k]·w[k,c] is c = a·b. So is rung 4 in fp32.
//   gains     cp.async fetches the next two tiles into further stages of shared memory while this
//             one is multiplied, 16 bytes a copy; a warp makes 64×32 sums from each pair of
//             fragments; where c is small, l is cut into parts so that all multiprocessors work.
//   bf16      a and b are bf16 in memory, as activations and weights are in this precision.

// rung(name, precision, submit) runs what submits one product.
using Rung = std::function<void(const char*, Precision, const std::function<void()>&)>;
void own_rungs(const Rung& rung, const float* a, const float* b, float* c, int I, int J, int L,
               bool tensor_cores) {
    rung("naive", Precision::kFp32, [&] {
        naive_kernel<<<dim3(ceil_div(I, 32), ceil_div(J, 8)), dim3(32, 8)>>>(a, b, c, I, J, L);
    });
    rung("coalesced", Precision::kFp32, [&] {
        coalesced_kernel<<<dim3(ceil_div(J, 32), ceil_div(I, 8)), dim3(32, 8)>>>(a, b, c, I, J, L);
    });
    rung("shared tile", Precision::kFp32, [&] {
        const dim3 grid(ceil_div(J, kSide), ceil_div(I, kSide));
        shared_kernel<<<grid, dim3(kSide, kSide)>>>(a, b, c, I, J, L);
    });
    if (!tensor_cores) return;
    const dim3 grid(ceil_div(J, kTile), ceil_div(I, kTile));
    rung("tensor cores", Precision::kTf32,
         [&] { tensor_kernel<false><<<grid, 128>>>(a, b, c, I, J, L); });
    rung("tensor cores", Precision::kBf16,
         [&] { tensor_kernel<true><<<grid, 128>>>(a, b, c, I, J, L); });
}

// Seconds from the first submission to the end of the last product, on an idle device.
double time(const std::function<void()>& submit, int repeats) {
    CUDA_CHECK(cudaDeviceSynchronize());
    const auto begin = Clock::now();
    for (int i = 0; i < repeats; ++i) submit();
    CUDA_LAUNCHED();
    CUDA_CHECK(cudaDeviceSynchronize());
    return seconds_since(begin);
}

}  // namespace

void climb_gemm_ladder(GemmSize size, std::span<const float> a_numbers,
                       std::span<const float> b_numbers, const RungVisitor& visit,
                       std::string* why_no_cublas) {
    const int I = size.I, J = size.J, L = size.L;
    ENSURE(a_numbers.size() == size_t(I) * L && b_numbers.size() == size_t(L) * J, "a has ",
           a_numbers.size(), " numbers, b ", b_numbers.size());
    const auto memory = make_device_backend(0, {});
    const auto matrix = [&](int rows, int columns) {
        return Tensor(memory->alloc(size_t(rows) * columns), rows, 1, 1, columns);
    };
    const auto rounded = [&](Tensor x) {
        const Tensor to(memory->alloc((x.elems() + 1) / 2), x.shape(), Type::kBfloat16);
        memory->copy(to, x);
        return to;
    };
    const Tensor a_tensor = matrix(I, L), b_tensor = matrix(L, J), c_tensor = matrix(I, J);
    const float *a = a_tensor.floats(), *b = b_tensor.floats();
    float* c = c_tensor.floats();
    memory->upload(a_tensor.data, a_numbers.data(), a_numbers.size_bytes());
    memory->upload(b_tensor.data, b_numbers.data(), b_numbers.size_bytes());

    // Runs what submits a product, from a c full of NaN; on a GPU again, for a tenth of a second.
    const auto rung = [&](const char* name, Precision precision,
                          const std::function<void()>& submit) {
        memory->fill(c, c_tensor.elems(), NAN);
        time(submit, 1);
        double seconds = 0;
        if (!kIsEmulator) {
            const int repeats = int(std::clamp(0.1 / time(submit, 1), 1.0, 1000.0));
            seconds = time(submit, repeats) / repeats;
        }
        RungResult result{name, precision, std::vector<float>(c_tensor.elems()), seconds};
        memory->download(result.c.data(), c, c_tensor.bytes());
        visit(result);
    };
    cudaDeviceProp properties;
    CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
    const bool tensor_cores = properties.major >= 8;
    own_rungs(rung, a, b, c, I, J, L, tensor_cores);

    std::unique_ptr<Cublas> cublas;
    try {
        if (!kIsEmulator)
            cublas = std::make_unique<Cublas>(
                open_cublas(), nullptr, memory->alloc(Cublas::kWorkspaceBytes / sizeof(float)));
    } catch (const Error& error) {
        *why_no_cublas = error.what();
    }
    for (Precision precision : {Precision::kFp32, Precision::kTf32, Precision::kBf16}) {
        if (precision != Precision::kFp32 && !tensor_cores) continue;
        const bool is_bf16 = precision == Precision::kBf16;
        const Tensor x = is_bf16 ? rounded(a_tensor) : a_tensor;
        const Tensor y = is_bf16 ? rounded(b_tensor) : b_tensor;
        const auto backend = make_device_backend(0, {.precision = precision});
        rung("production", precision, [&] { backend->linear_grad_x(x, y, nullptr, c_tensor); });
        if (cublas) rung("cuBLAS", precision, [&] { cublas->product(precision, x, y, c_tensor); });
    }
}

}  // namespace convoy::CONVOY_DEVICE
