// gemm_ladder.cu — a product of matrices, ten times: what makes it fast on a GPU, one step each.
//
//   c[i][j] = Σ_l a[i][l]·b[l][j]       a is I × L, b is L × J, c is I × J; all fp32, row after row
//
// To be read from top to bottom. "bytes" is what goes between the multiprocessors and the memory
// behind them (caches help where the same is asked for again): 2·I·J·L operations are to be done,
// and a GPU does 10 to 100 of them, on tensor cores many more, in the time in which it reads one
// byte. So every rung is about reading less for the same sums. Rungs 4, 6 and 9 are the kernels
// that train. Rungs 7 to 10 need a Hopper GPU, and code for 9.0a.
#include "tests/lab/gemm_ladder.h"

#include <cmath>
#include <cstdlib>

#include "kernels/cuda/elements.h"
#include "kernels/cuda/make_backend.h"
#include "kernels/cuda/mma.cuh"
#include "tests/lab/cublas.h"
#include "tests/lab/rung.h"

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

// ---- 7. wgmma --------------------------------------------------------------------------------
//
//   mapping   a block of 4 warps, a group, makes 64×128 numbers of c, in steps of 64 along l. The
//             tensor cores read both tiles from shared memory: one instruction of the group
//             multiplies 64×16 by 16×128, 131,072 multiply-adds.
//   bytes     2·L·(I·⌈J/128⌉ + J·⌈I/64⌉): a and b are bf16 in memory.
//   shared    24 KB. A tile has rows of 128 bytes: of a, 64 depths; of b, 64 columns. The 8 chunks
//             of a row are exchanged by row % 8, so that 8 rows of one chunk are in all banks.
//   gains     no fragments: a register holds sums alone, and one instruction starts what took 64
//             and their loads. But all threads copy, then all wait for the products.
constexpr int kGroupRows = 64, kGroupColumns = 128, kGroupDepth = 64, kBoxBytes = 64 * 128;

// What threads have written to shared memory is there for products after the next barrier.
__device__ __forceinline__ void fence_for_products() {
#ifdef __CUDACC__
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
// The sums of 64 rows of c from row i0 on, and of 128 columns from j0 on.
__device__ __forceinline__ void store_sums(const float (&sums)[16][4], float* __restrict__ c,
                                           int i0, int j0, int I, int J) {
    const int thread = threadIdx.x % 128;
#pragma unroll
    for (int n = 0; n < 16; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = i0 + thread / 32 * 16 + thread % 32 / 4 + half * 8;
            const int j = j0 + n * 8 + thread % 4 * 2;
            if (i >= I || j >= J) continue;
            *reinterpret_cast<float2*>(c + size_t(i) * J + j) =
                float2{sums[n][half * 2], sums[n][half * 2 + 1]};
        }
}

__global__ void __launch_bounds__(128)
    group_kernel(const __nv_bfloat16* __restrict__ a, const __nv_bfloat16* __restrict__ b,
                 float* __restrict__ c, int I, int J, int L) {
    if constexpr (kHasGroupProducts) {
        __shared__ __align__(1024) char a_tile[kBoxBytes];
        __shared__ __align__(1024) char b_tile[2 * kBoxBytes];
        const int i0 = blockIdx.y * kGroupRows, j0 = blockIdx.x * kGroupColumns;
        GroupProducts products;
        float sums[16][4] = {};
        for (int first = 0; first < L; first += kGroupDepth) {
            for (int e = threadIdx.x; e < 64 * 8; e += 128) {
                const int row = e / 8, chunk = e % 8, i = i0 + row, l = first + chunk * 8;
                *reinterpret_cast<float4*>(a_tile + row * 128 + (chunk ^ row % 8) * 16) =
                    i < I && l < L ? *reinterpret_cast<const float4*>(a + size_t(i) * L + l)
                                   : float4{};
            }
            for (int e = threadIdx.x; e < 64 * 16; e += 128) {
                const int row = e / 16, chunk = e % 16, l = first + row, j = j0 + chunk * 8;
                *reinterpret_cast<float4*>(b_tile + chunk / 8 * kBoxBytes + row * 128 +
                                           (chunk % 8 ^ row % 8) * 16) =
                    l < L && j < J ? *reinterpret_cast<const float4*>(b + size_t(l) * J + j)
                                   : float4{};
            }
            fence_for_products();
            __syncthreads();  // both tiles are there
            products.start<true, false>(sums, GroupProducts::descriptor<true>(a_tile),
                                        GroupProducts::descriptor<false>(b_tile));
            products.wait<0>();
            __syncthreads();  // all are multiplied; the next tiles may be stored
        }
        store_sums(sums, c, i0, j0, I, J);
    }
}

// ---- 8. TMA ----------------------------------------------------------------------------------
//
//   mapping   as before. One thread asks for the next tiles with three instructions, and all wait
//             for their bytes at a barrier in shared memory (mbarrier).
//   bytes     as before.
//   gains     no thread computes an address, holds a number on its way, or exchanges chunks: TMA
//             does, and writes zeros for what lies outside. What is copied and what is multiplied
//             still take turns.
inline CUtensorMap map_of(const __nv_bfloat16* matrix, int rows, int columns, int box_rows) {
    return image_map(matrix, {columns, rows, 1, 1}, {0, 0}, {0, 0}, {1, 1}, box_rows);
}
// Asks for a box: 64 columns from `column` on, rows from `row` on.
__device__ __forceinline__ void copy_box(char* to, CopyBarrier& there, const CUtensorMap& map,
                                         int row, int column) {
    there.copy(to, map, column, row, 0, 0, 0, 0);
}

__global__ void __launch_bounds__(128)
    tma_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
               float* __restrict__ c, int I, int J, int L) {
    if constexpr (kHasGroupProducts) {
        __shared__ __align__(1024) char a_tile[kBoxBytes];
        __shared__ __align__(1024) char b_tile[2 * kBoxBytes];
        __shared__ CopyBarrier there;
        const int i0 = blockIdx.y * kGroupRows, j0 = blockIdx.x * kGroupColumns;
        if (threadIdx.x == 0) there.init(1);
        __syncthreads();  // the barrier is there
        GroupProducts products;
        float sums[16][4] = {};
        for (int step = 0; step * kGroupDepth < L; ++step) {
            const int first = step * kGroupDepth;
            if (threadIdx.x == 0) {
                there.arrive_and_expect(3 * kBoxBytes);
                copy_box(a_tile, there, a, i0, first);
                copy_box(b_tile, there, b, first, j0);
                copy_box(b_tile + kBoxBytes, there, b, first, j0 + 64);
            }
            there.wait(step % 2);
            products.start<true, false>(sums, GroupProducts::descriptor<true>(a_tile),
                                        GroupProducts::descriptor<false>(b_tile));
            products.wait<0>();
            __syncthreads();  // all are multiplied; the next tiles may be copied
        }
        store_sums(sums, c, i0, j0, I, J);
    }
}

// ---- 9. a warp that copies: kernels/cuda/tma_gemm.cuh, for bf16 on Hopper ---------------------
//
//   mapping   a block makes 128×128 numbers of c: two groups multiply, and a ninth warp copies up
//             to three stages ahead. Two barriers per stage take the place of the block's: `full`,
//             and `empty`. Two blocks share a multiprocessor.
//   bytes     2·L·(I·⌈J/128⌉ + J·⌈I/128⌉).
//   gains     copies, products, and the other block's stores go on side by side.
//   named     "production/TMA"; "production/wide" has tiles of 128×256

// ---- 10. persistent, 128×256 -----------------------------------------------------------------
//
//   mapping   as rung 9, with tiles of 128×256: a group has 64 rows, a thread 128 registers of
//             sums. One block per multiprocessor takes tile after tile, and the copying warp is
//             already at the next tile while the groups store this one. Tiles are taken in groups
//             of 8 rows, so that the blocks that run together read few rows and few columns.
//   bytes     2·L·(I·⌈J/256⌉ + J·⌈I/128⌉): if the tensor cores are to be busy, 48 instead of 64
//             bytes a clock for each multiprocessor, most of them from the L2 cache.
//   shared    3 stages of 48 KB
constexpr int kWideColumns = 256, kWideRows = 128, kWideStages = 3;
constexpr int kWideStage = kWideRows * 128 + kWideColumns * 128, kRowsTogether = 8;

// Where in c tile number `tile` begins.
struct Corner {
    int row, column;
};
__device__ __forceinline__ Corner wide_tile(int tile, int rows, int columns) {
    const int group = tile / (kRowsTogether * columns), in = tile % (kRowsTogether * columns);
    const int together = min(kRowsTogether, rows - group * kRowsTogether);
    return {(group * kRowsTogether + in % together) * kWideRows, in / together * kWideColumns};
}

__global__ void __launch_bounds__(288)
    persistent_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                      float* __restrict__ c, int I, int J, int L) {
    if constexpr (kHasGroupProducts) {
        extern __shared__ __align__(1024) char shared[];
        __shared__ CopyBarrier full[kWideStages];
        __shared__ CopyBarrier empty[kWideStages];
        const int thread = threadIdx.x, rows = ceil_div(I, kWideRows);
        const int columns = ceil_div(J, kWideColumns), steps = ceil_div(L, kGroupDepth);
        if (thread == 0)
            for (int s = 0; s < kWideStages; ++s) full[s].init(1), empty[s].init(8);
        __syncthreads();  // the barriers are there
        int stage = 0, parity = 0;
        const auto next = [&] {
            if (++stage == kWideStages) stage = 0, parity ^= 1;
        };
        if (thread >= 256) {
            if (thread > 256) return;
            for (int tile = blockIdx.x; tile < rows * columns; tile += gridDim.x) {
                const Corner at = wide_tile(tile, rows, columns);
                for (int step = 0; step < steps; ++step, next()) {
                    char* const to = shared + stage * kWideStage;
                    empty[stage].wait(parity ^ 1);  // not the first time
                    full[stage].arrive_and_expect(kWideStage);
                    copy_box(to, full[stage], a, at.row, step * kGroupDepth);
                    for (int e = 0; e < 4; ++e)
                        copy_box(to + kWideRows * 128 + e * kBoxBytes, full[stage], b,
                                 step * kGroupDepth, at.column + e * 64);
                }
            }
            return;
        }
        GroupProducts products;
        for (int tile = blockIdx.x; tile < rows * columns; tile += gridDim.x) {
            const Corner at = wide_tile(tile, rows, columns);
            float sums[2][16][4] = {};
            int before = 0;
            for (int step = 0; step < steps; ++step, before = stage, next()) {
                const char* const a_tile = shared + stage * kWideStage + thread / 128 * kBoxBytes;
                const char* const b_tile = shared + stage * kWideStage + kWideRows * 128;
                const uint64_t own = GroupProducts::descriptor<true>(a_tile);
                full[stage].wait(parity);
                products.start<true, false>(sums[0], own, GroupProducts::descriptor<false>(b_tile));
                products.start<true, false>(
                    sums[1], own, GroupProducts::descriptor<false>(b_tile + 2 * kBoxBytes));
                products.wait<2>();  // the step before is multiplied
                if (step > 0 && thread % 32 == 0) empty[before].arrive();
            }
            products.wait<0>();
            if (thread % 32 == 0) empty[before].arrive();
#pragma unroll
            for (int half = 0; half < 2; ++half)
                store_sums(sums[half], c, at.row + thread / 128 * 64, at.column + half * 128, I, J);
        }
    }
}

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

// Rungs 7, 8 and 10. Rows of a and b begin at multiples of 16 bytes.
void hopper_rungs(const Rung& rung, const __nv_bfloat16* a, const __nv_bfloat16* b, float* c, int I,
                  int J, int L, int processors) {
    const dim3 grid(ceil_div(J, kGroupColumns), ceil_div(I, kGroupRows));
    rung("wgmma", Precision::kBf16, [&] { group_kernel<<<grid, 128>>>(a, b, c, I, J, L); });
    rung("TMA", Precision::kBf16,
         [&] { tma_kernel<<<grid, 128>>>(map_of(a, I, L, 64), map_of(b, L, J, 64), c, I, J, L); });
    constexpr int kBytes = kWideStages * kWideStage;
    CUDA_CHECK(cudaFuncSetAttribute(persistent_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    kBytes));
    rung("persistent", Precision::kBf16, [&] {
        const int tiles = ceil_div(I, kWideRows) * ceil_div(J, kWideColumns);
        persistent_kernel<<<std::min(tiles, processors), 288, kBytes>>>(
            map_of(a, I, L, kWideRows), map_of(b, L, J, 64), c, I, J, L);
    });
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
        RungResult result{name, precision, std::vector<float>(c_tensor.elems()),
                          seconds_of(submit)};
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
        if (is_bf16 && has_group_products(properties) && J % 8 == 0 && L % 8 == 0) {
            hopper_rungs(rung, elements<__nv_bfloat16>(x), elements<__nv_bfloat16>(y), c, I, J, L,
                         properties.multiProcessorCount);
            for (const char* tiles : {"on", "wide"}) {
                setenv("CONVOY_TEST_TMA", tiles, 1);
                const auto by_tma = make_device_backend(0, {.precision = precision});
                unsetenv("CONVOY_TEST_TMA");
                rung(cat("production/", *tiles == 'o' ? "TMA" : tiles).c_str(), precision,
                     [&] { by_tma->linear_grad_x(x, y, nullptr, c_tensor); });
            }
        }
        if (cublas) rung("cuBLAS", precision, [&] { cublas->product(precision, x, y, c_tensor); });
    }
}

}  // namespace convoy::CONVOY_DEVICE
