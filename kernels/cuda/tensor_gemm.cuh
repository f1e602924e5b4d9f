// tensor_gemm.cuh — the product of gemm.cuh on tensor cores: the same operands, the same results up
// to the rounding of what is multiplied.
//
//   out[i][j] = finish(Σ_l round(a(i,l)) · round(b(j,l)))    round: to tf32 or bf16; sums in fp32
//
//   A block makes 128 × 128 (or 128 × 64) numbers of out, in steps of 32 along l. Its 8 warps own
//   64×32 (32×32) of them each, in registers. While they multiply step s, cp.async fetches the
//   steps s+1 and s+2 into two other stages of shared memory; numbers are rounded on their way from
//   there into registers, so weights and activations stay fp32 and no copy of them is kept.
//
//   grid      (⌈J/columns⌉, ⌈I/128⌉, parts) blocks of 256 threads. Where the tiles are too few for
//             a GPU, l is cut into parts; each writes sums of its own, which finish_kernel adds.
//   shared    3 stages × 32 × (128 + columns) floats: 96 KB (72 KB), and what rows mean.
//             An operand whose depth is fast lies row by row, 32 floats or 8 chunks of 16 bytes a
//             row; chunk c of row i is at place c ^ (i % 8):
//
//               row 0  0 1 2 3 4 5 6 7      ldmatrix reads one chunk of 8 rows
//               row 1  1 0 3 2 5 4 7 6      at a time: 8 places that differ,
//               row 2  2 3 0 1 6 7 4 5      so all 32 banks at once.
//               row 3  3 2 1 0 7 6 5 4  …
//
//             One whose rows are fast lies depth by depth; chunk c of depth l is at place
//             c ^ 2·(l % 4). A warp reads 8 neighbouring rows (two chunks) of 4 depths: 32 banks.
//   bytes     4·L·(I·⌈J/columns⌉ + J·⌈I/128⌉) read, from the L2 cache mostly: 32 (21) operations a
//             byte; 4·I·J written. From shared memory a warp reads 24 KB for 64·32·32 products.
//   order     l rises in steps of 8 (bf16: 16) within a part, the sums inside of a step are the
//             hardware's; parts are added in order. No atomics: the same bits on every run.
//   moments   where statistics of the columns are wanted (moments.cuh), the stages' memory is used
//             for them at the end; 12·⌈I/128⌉·J bytes written.
//
// A step of bf16 takes the depths in another order than they lie in, the same for a and b:
// ldmatrix hands member m of a lane's group the depths m, 4+m, 8+m and 12+m of 16, which stand in
// the places 2m, 2m+1, 2m+8 and 2m+9 of the fragment. So both precisions fetch alike.
//
// Copies are of 16 bytes where four neighbours are in one row or tap (channels a multiple of 4,
// data aligned to 16), else of 4 bytes: first layers of 3 channels are read as they lie, not
// padded.
#pragma once

#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/mma.cuh"

namespace convoy::CONVOY_DEVICE {

constexpr int kTensorRows = 128, kTensorDepth = 32, kTensorThreads = 256, kStages = 3;

// Where number (row, l) of an operand is in its part of a stage.
template <bool kDepthFast, int kRows>
__device__ __forceinline__ int place(int row, int l) {
    if constexpr (kDepthFast) return row * kTensorDepth + ((l / 4 ^ row % 8) * 4 | l % 4);
    return l * kRows + ((row / 4 ^ l % 4 * 2) * 4 | row % 4);
}

// Requests one stage of an operand after the other; kWidth floats a copy.
template <class Operand, int kRows, int kWidth>
class StageFetch {
 public:
    static constexpr bool kDepthFast = Operand::kDepthFast;
    using Row = typename Operand::Row;

    // rows: what each row means, in shared memory, where a thread has several.
    __device__ StageFetch(const Operand& operand, int first_row, int thread, Row* rows)
        : operand_(operand),
          rows_(rows),
          row_(kDepthFast ? thread / kAcross : thread % kAcross * kWidth),
          depth_(kDepthFast ? thread % kAcross * kWidth : thread / kAcross) {
        if constexpr (kDepthFast) {
            if (thread < kRows) rows[thread] = operand.row(first_row + thread);
        } else {
            own_row_ = operand.row(first_row + row_);
        }
    }
    __device__ __forceinline__ void request(AsyncCopies& copies, int l, float* stage) const {
        if constexpr (kDepthFast) {
            const auto depth = operand_.depth(l + depth_);
#pragma unroll
            for (int e = 0; e < kEach; ++e)
                copy(copies, stage, row_ + e * kApart, depth_,
                     operand_.find(rows_[row_ + e * kApart], depth));
        } else {
#pragma unroll
            for (int e = 0; e < kEach; ++e) {
                const int d = depth_ + e * kApart;
                copy(copies, stage, row_, d, operand_.find(own_row_, operand_.depth(l + d)));
            }
        }
    }

 private:
    // Copies side by side along the fast direction; steps along the other; copies of a thread.
    static constexpr int kAcross = (kDepthFast ? kTensorDepth : kRows) / kWidth;
    static constexpr int kApart = kTensorThreads / kAcross;
    static constexpr int kEach = (kDepthFast ? kRows : kTensorDepth) / kApart;

    __device__ __forceinline__ void copy(AsyncCopies& copies, float* stage, int row, int l,
                                         const float* from) const {
        copies.template copy<kWidth * 4>(stage + place<kDepthFast, kRows>(row, l),
                                         from ? from : operand_.any(), from != nullptr);
    }

    const Operand& operand_;
    const Row* rows_;
    Row own_row_;
    int row_, depth_;
};

// Rows row … row+15, depths l … l+7 of a, as the four registers of a fragment of tf32, not rounded.
template <bool kDepthFast, int kRows>
__device__ __forceinline__ void load_a(uint32_t (&a)[4], const float* stage, int row, int l,
                                       int lane) {
    if constexpr (kDepthFast) {
        load_matrices(a, stage + place<true, kRows>(row + lane % 16, l + lane / 16 * 4));
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            a[i] = __float_as_uint(
                stage[place<false, kRows>(row + lane / 4 + i % 2 * 8, l + lane % 4 + i / 2 * 4)]);
    }
}
// Columns column … column+15, depths l … l+7 of b: two fragments.
template <bool kDepthFast, int kRows>
__device__ __forceinline__ void load_b(uint32_t (&b)[2], uint32_t (&next)[2], const float* stage,
                                       int column, int l, int lane) {
    if constexpr (kDepthFast) {
        uint32_t both[4];
        load_matrices(both, stage + place<true, kRows>(column + lane % 8 + lane / 16 * 8,
                                                       l + lane / 8 % 2 * 4));
        b[0] = both[0], b[1] = both[1], next[0] = both[2], next[1] = both[3];
    } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int at = column + lane / 4, depth = l + lane % 4 + i * 4;
            b[i] = __float_as_uint(stage[place<false, kRows>(at, depth)]);
            next[i] = __float_as_uint(stage[place<false, kRows>(at + 8, depth)]);
        }
    }
}
__device__ __forceinline__ uint32_t tf32_of(uint32_t bits) {
    return to_tf32(__uint_as_float(bits));
}
__device__ __forceinline__ uint32_t bf16x2_of(uint32_t low, uint32_t high) {
    return to_bf16x2(__uint_as_float(low), __uint_as_float(high));
}

// The 16·kM × 32 sums of one warp, over one stage.
template <bool kBf16, bool kDepthFastA, bool kDepthFastB, int kColumns, int kM>
__device__ __forceinline__ void multiply_stage(const float* a_stage, const float* b_stage, int row,
                                               int column, int lane, float (&sums)[kM][4][4]) {
#pragma unroll
    for (int l = 0; l < kTensorDepth; l += 16) {
        uint32_t a[2][kM][4], b[2][4][2];  // halves of 8 depths
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int m = 0; m < kM; ++m)
                load_a<kDepthFastA, kTensorRows>(a[half][m], a_stage, row + m * 16, l + half * 8,
                                                 lane);
#pragma unroll
            for (int n = 0; n < 4; n += 2)
                load_b<kDepthFastB, kColumns>(b[half][n], b[half][n + 1], b_stage, column + n * 8,
                                              l + half * 8, lane);
        }
        if constexpr (kBf16) {
            uint32_t pairs[4][2];
#pragma unroll
            for (int n = 0; n < 4; ++n)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    pairs[n][half] = bf16x2_of(b[half][n][0], b[half][n][1]);
#pragma unroll
            for (int m = 0; m < kM; ++m) {
                uint32_t rounded[4];
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    rounded[i] = bf16x2_of(a[i / 2][m][i % 2], a[i / 2][m][i % 2 + 2]);
#pragma unroll
                for (int n = 0; n < 4; ++n) mma_bf16(sums[m][n], rounded, pairs[n]);
            }
        } else {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
#pragma unroll
                for (int n = 0; n < 4; ++n)
                    for (uint32_t& number : b[half][n]) number = tf32_of(number);
#pragma unroll
                for (int m = 0; m < kM; ++m) {
                    for (uint32_t& number : a[half][m]) number = tf32_of(number);
#pragma unroll
                    for (int n = 0; n < 4; ++n) mma_tf32(sums[m][n], a[half][m], b[half][n]);
                }
            }
        }
    }
}

template <class A, class B, int kWidthA, int kWidthB, bool kBf16, int kColumns, class F>
__global__ void __launch_bounds__(kTensorThreads)
    tensor_product_kernel(A a, B b, int I, int J, int L, int part_depth, float* parts, F finish) {
    extern __shared__ __align__(128) float stages[];
    __shared__ typename A::Row a_rows[kTensorRows];
    __shared__ typename B::Row b_rows[kColumns];
    constexpr int kAcross = kColumns / 32, kDown = 8 / kAcross, kM = kTensorRows / kDown / 16;
    constexpr int kStage = (kTensorRows + kColumns) * kTensorDepth;
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const int i0 = blockIdx.y * kTensorRows, j0 = blockIdx.x * kColumns;
    const int row = warp / kAcross * (kM * 16), column = warp % kAcross * 32;
    const StageFetch<A, kTensorRows, kWidthA> fetch_a(a, i0, thread, a_rows);
    const StageFetch<B, kColumns, kWidthB> fetch_b(b, j0, thread, b_rows);
    __syncthreads();  // the meaning of the rows is known

    const int begin = blockIdx.z * part_depth, end = min(L, begin + part_depth);
    const int steps = ceil_div(end - begin, kTensorDepth);
    AsyncCopies copies;
    const auto request = [&](int step) {
        float* stage = stages + step % kStages * kStage;
        if (step < steps) {
            fetch_a.request(copies, begin + step * kTensorDepth, stage);
            fetch_b.request(copies, begin + step * kTensorDepth,
                            stage + kTensorRows * kTensorDepth);
        }
        copies.commit();  // a group also where it is empty, so that the wait counts right
    };
    for (int step = 0; step < kStages - 1; ++step) request(step);

    float sums[kM][4][4] = {};
    for (int step = 0; step < steps; ++step) {
        copies.template wait<kStages - 2>();
        __syncthreads();  // the copies of all threads are there, and step - 1 is multiplied
        request(step + kStages - 1);
        const float* stage = stages + step % kStages * kStage;
        multiply_stage<kBf16, A::kDepthFast, B::kDepthFast, kColumns, kM>(
            stage, stage + kTensorRows * kTensorDepth, row, column, lane, sums);
    }
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int i = i0 + row + m * 16 + lane / 4 + e / 2 * 8;
                const int j = j0 + column + n * 8 + lane % 4 * 2 + e % 2;
                if (i >= I || j >= J) continue;
                if (parts)
                    parts[(size_t(blockIdx.z) * I + i) * J + j] = sums[m][n][e];
                else
                    sums[m][n][e] = finish(i, j, J, sums[m][n][e]);
            }
    if constexpr (F::kMoments)
        if (finish.strips.pieces && !parts)
            tile_moments<kM * 2, 8, kDown * 8, kColumns>(
                finish.strips, blockIdx.y, j0, warp / kAcross * 8 + lane / 4, stages,
                stages + kStage,
                [&](int r, int c) { return sums[r / 2][c / 2][r % 2 * 2 + c % 2]; },
                [&](int r) { return row + r / 2 * 16 + lane / 4 + r % 2 * 8; },
                [&](int c) { return column + c / 2 * 8 + lane % 4 * 2 + c % 2; });
}

// As product_parts: by shapes alone; two blocks for each of 132 multiprocessors fill a large GPU.
inline int tensor_parts(int64_t I, int64_t J, int64_t L, int columns) {
    const int64_t tiles = int64_t(ceil_div(I, kTensorRows)) * ceil_div(J, columns);
    const int64_t wanted = 264 / tiles, room = (int64_t(16) << 20) / std::max<int64_t>(1, I * J);
    return int(std::clamp<int64_t>(std::min(wanted, room), 1, ceil_div(L, 256)));
}

template <class A, class B, int kWidthA, int kWidthB, bool kBf16, int kColumns, class F>
bool launch_tensor_product(const A& a, const B& b, int64_t I, int64_t J, int64_t L, const F& finish,
                           DeviceMemory& memory, size_t slot, cudaStream_t stream) {
    const int count = tensor_parts(I, J, L, kColumns);
    const int depth = ceil_div(ceil_div(L, count), kTensorDepth) * kTensorDepth;
    float* parts = count > 1 ? memory.scratch<float>(slot, size_t(count) * I * J) : nullptr;
    const dim3 grid(ceil_div(J, kColumns), ceil_div(I, kTensorRows), count);
    constexpr int kBytes = kStages * (kTensorRows + kColumns) * kTensorDepth * int(sizeof(float));
    CUDA_CHECK(
        cudaFuncSetAttribute(tensor_product_kernel<A, B, kWidthA, kWidthB, kBf16, kColumns, F>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    tensor_product_kernel<A, B, kWidthA, kWidthB, kBf16, kColumns, F>
        <<<grid, kTensorThreads, kBytes, stream>>>(a, b, int(I), int(J), int(L), depth, parts,
                                                   finish);
    CUDA_LAUNCHED();
    if (!parts) return true;
    finish_kernel<<<ceil_div(I * J, 256), 256, 0, stream>>>(parts, count, I, int(J), finish);
    CUDA_LAUNCHED();
    return false;
}

// multiply() of gemm.cuh with a precision. kWidthA, kWidthB: floats a copy. Narrow tiles where out
// is narrow, and where copies are of single floats (first and last layers; fewer kernels to build).
template <int kWidthA, int kWidthB, class A, class B, class F = Finish>
bool multiply_tensor(Precision precision, const A& a, const B& b, int64_t I, int64_t J, int64_t L,
                     const F& finish, DeviceMemory& memory, size_t slot, cudaStream_t stream) {
    ENSURE(I <= INT32_MAX && J <= INT32_MAX && L <= INT32_MAX, "a product of ", I, " x ", J, " x ",
           L);
    if (I == 0 || J == 0) return true;
    const bool bf16 = precision == Precision::kBf16;
    const auto launch = [&](auto launcher) {
        return launcher(a, b, I, J, L, finish, memory, slot, stream);
    };
    if constexpr (kWidthA == 4 && kWidthB == 4)
        if (J > 64) {
            if (bf16) return launch(launch_tensor_product<A, B, 4, 4, true, 128, F>);
            return launch(launch_tensor_product<A, B, 4, 4, false, 128, F>);
        }
    if (bf16) return launch(launch_tensor_product<A, B, kWidthA, kWidthB, true, 64, F>);
    return launch(launch_tensor_product<A, B, kWidthA, kWidthB, false, 64, F>);
}

}  // namespace convoy::CONVOY_DEVICE
