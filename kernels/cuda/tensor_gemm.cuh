// tensor_gemm.cuh — the product of gemm.cuh on tensor cores: the same operands, the same results up
// to the rounding of what is multiplied.
//
//   out[i][j] = epilogue(Σ_l a(i,l) · b(j,l))     sums in fp32; floats are rounded to tf32 before,
//                                               bf16 are multiplied as they are
//
//   A block makes 128 × 128 (or 128 × 64) numbers of out, in steps of 128 bytes along l: 32 floats
//   or 64 bf16. Its 8 warps own 64×32 (32×32) of them each, in registers. While they multiply step
//   s, cp.async fetches the steps s+1 and s+2 into two other stages of shared memory.
//
//   grid      (⌈J/columns⌉·⌈I/128⌉, 1, parts) blocks of 256 threads. Where the tiles are too few
//             for a GPU, l is cut into parts; each writes its own sums, which epilogue_kernel adds.
//   shared    3 stages × 128 bytes × (128 + columns): 96 KB (72 KB), and what rows mean.
//             An operand whose depth is fast lies row by row, 128 bytes or 8 chunks of 16 a row;
//             chunk c of row i is at place c ^ (i % 8):
//
//               row 0  0 1 2 3 4 5 6 7      ldmatrix reads one chunk of 8 rows
//               row 1  1 0 3 2 5 4 7 6      at a time: 8 places that differ,
//               row 2  2 3 0 1 6 7 4 5      so all 32 banks at once.
//               row 3  3 2 1 0 7 6 5 4  …
//
//             One whose rows are fast lies depth by depth, chunk c of depth l
//               of floats  at place c ^ 2·(l % 4): a warp reads 8 neighbouring rows (two chunks) of
//                          4 depths, 32 banks;
//               of bf16    at place c ^ (l % 8): ldmatrix.trans reads one chunk of 8 depths, and
//                          transposes it.
//   bytes     4·L·(I·⌈J/columns⌉ + J·⌈I/128⌉) read, from the L2 cache mostly, half of that where
//             they are bf16: 32 (21) or 64 (43) operations a byte; 4·I·J written, or 2·I·J. From
//             shared memory a warp reads 12 KB for 64·32·32 products of tf32, 64·32·64 of bf16.
//   order     l rises in steps of 8 (bf16: 16) within a part, the sums inside of a step are the
//             hardware's; parts are added in order. No atomics: the same bits on every run.
//   moments   where statistics of the columns are wanted (moments.cuh), the stages' memory is used
//             for them at the end; 12·⌈I/128⌉·J bytes written.
//
// Copies are of 16 bytes where as many neighbours are in one row or tap (channels a multiple of 4
// floats or 8 bf16, data aligned to 16), else of single numbers: first layers of 3 channels are
// read as they lie, not padded. A single bf16 is too small for cp.async: it passes through a
// register, where it waits while the stage before is multiplied.
#pragma once

#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/mma.cuh"

namespace convoy::CONVOY_DEVICE {

constexpr int kTensorRows = 128, kTensorThreads = 256, kStages = 3;
template <class T>
constexpr int kChunk = 16 / int(sizeof(T));  // numbers that are copied as one
template <class T>
constexpr int kTensorDepth = 8 * kChunk<T>;
template <class T>
constexpr int kMmaDepth = 32 / int(sizeof(T));  // of one instruction

// Where number (row, l) of an operand is in its part of a stage.
template <class T, bool kDepthFast, int kRows>
__device__ __forceinline__ int place(int row, int l) {
    constexpr int kSize = kChunk<T>;
    if constexpr (kDepthFast)
        return row * kTensorDepth<T> + ((l / kSize ^ row % 8) * kSize | l % kSize);
    const int turn = kSize == 4 ? l % 4 * 2 : l % 8;
    return l * kRows + ((row / kSize ^ turn) * kSize | row % kSize);
}

// Copies an operand to shared memory, stage after stage; kWidth numbers a copy.
template <class Operand, int kRows, int kWidth>
class StageFetch {
 public:
    using T = typename Operand::Number;
    using Row = typename Operand::Row;
    static constexpr bool kDepthFast = Operand::kDepthFast;

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
    // Starts the copies of a stage, from depth l on.
    __device__ __forceinline__ void request(AsyncCopies& copies, int l, T* stage) {
        if constexpr (kDepthFast) {
            const auto depth = operand_.depth(l + depth_);
#pragma unroll
            for (int e = 0; e < kEach; ++e)
                bring(copies, stage, e, operand_.find(rows_[row_ + e * kApart], depth));
        } else {
#pragma unroll
            for (int e = 0; e < kEach; ++e)
                bring(copies, stage, e,
                      operand_.find(own_row_, operand_.depth(l + depth_ + e * kApart)));
        }
    }
    // Stores what waits in registers. To be called before the next request.
    __device__ __forceinline__ void deliver(T* stage) const {
        if constexpr (kByRegister) {
#pragma unroll
            for (int e = 0; e < kEach; ++e) stage[place_of(e)] = waiting_[e];
        }
    }

 private:
    // Copies side by side along the fast direction; steps along the other; copies of a thread.
    static constexpr int kAcross = (kDepthFast ? kTensorDepth<T> : kRows) / kWidth;
    static constexpr int kApart = kTensorThreads / kAcross;
    static constexpr int kEach = (kDepthFast ? kRows : kTensorDepth<T>) / kApart;
    static constexpr int kBytes = kWidth * int(sizeof(T));
    static constexpr bool kByRegister = kBytes < 4;

    __device__ __forceinline__ int place_of(int e) const {
        return place<T, kDepthFast, kRows>(row_ + (kDepthFast ? e * kApart : 0),
                                           depth_ + (kDepthFast ? 0 : e * kApart));
    }
    __device__ __forceinline__ void bring(AsyncCopies& copies, T* stage, int e, const T* from) {
        if constexpr (kByRegister)
            waiting_[e] = from ? *from : T(0.0f);
        else
            copies.template copy<kBytes>(stage + place_of(e), from ? from : operand_.any(),
                                         from != nullptr);
    }

    const Operand& operand_;
    const Row* rows_;
    Row own_row_;
    int row_, depth_;
    T waiting_[kByRegister ? kEach : 1];
};

// Rows row … row+15, depths l … l+7 (bf16: l+15) of a, as the four registers of a fragment.
template <class T, bool kDepthFast, int kRows>
__device__ __forceinline__ void load_a(uint32_t (&a)[4], const T* stage, int row, int l, int lane) {
    if constexpr (kDepthFast) {
        load_matrices(a, stage + place<T, true, kRows>(row + lane % 16, l + lane / 16 * kChunk<T>));
    } else if constexpr (sizeof(T) == 2) {
        load_matrices_transposed(a, stage + place<T, false, kRows>(row + lane / 8 % 2 * 8,
                                                                   l + lane % 8 + lane / 16 * 8));
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            a[i] = __float_as_uint(stage[place<T, false, kRows>(row + lane / 4 + i % 2 * 8,
                                                                l + lane % 4 + i / 2 * 4)]);
    }
}
// Columns column … column+15, the same depths of b: two fragments.
template <class T, bool kDepthFast, int kRows>
__device__ __forceinline__ void load_b(uint32_t (&b)[2], uint32_t (&next)[2], const T* stage,
                                       int column, int l, int lane) {
    if constexpr (kDepthFast || sizeof(T) == 2) {
        uint32_t both[4];
        if constexpr (kDepthFast)
            load_matrices(both, stage + place<T, true, kRows>(column + lane % 8 + lane / 16 * 8,
                                                              l + lane / 8 % 2 * kChunk<T>));
        else
            load_matrices_transposed(
                both, stage + place<T, false, kRows>(column + lane / 16 * 8, l + lane % 16));
        b[0] = both[0], b[1] = both[1], next[0] = both[2], next[1] = both[3];
    } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int at = column + lane / 4, depth = l + lane % 4 + i * 4;
            b[i] = __float_as_uint(stage[place<T, false, kRows>(at, depth)]);
            next[i] = __float_as_uint(stage[place<T, false, kRows>(at + 8, depth)]);
        }
    }
}

// Floats of a fragment become tf32; a bf16 stays as it is.
template <class T, int kCount>
__device__ __forceinline__ void round_fragment(uint32_t (&numbers)[kCount]) {
    if constexpr (sizeof(T) == 4)
        for (uint32_t& number : numbers) number = to_tf32(__uint_as_float(number));
}
template <class T>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    if constexpr (sizeof(T) == 4)
        mma_tf32(d, a, b);
    else
        mma_bf16(d, a, b);
}

// The 16·kM × 32 sums of one warp, over one stage.
template <class T, bool kDepthFastA, bool kDepthFastB, int kColumns, int kM>
__device__ __forceinline__ void multiply_stage(const T* a_stage, const T* b_stage, int row,
                                               int column, int lane, float (&sums)[kM][4][4]) {
#pragma unroll
    for (int l = 0; l < kTensorDepth<T>; l += kMmaDepth<T>) {
        uint32_t a[kM][4], b[4][2];
#pragma unroll
        for (int m = 0; m < kM; ++m) {
            load_a<T, kDepthFastA, kTensorRows>(a[m], a_stage, row + m * 16, l, lane);
            round_fragment<T>(a[m]);
        }
#pragma unroll
        for (int n = 0; n < 4; n += 2) {
            load_b<T, kDepthFastB, kColumns>(b[n], b[n + 1], b_stage, column + n * 8, l, lane);
            round_fragment<T>(b[n]), round_fragment<T>(b[n + 1]);
        }
#pragma unroll
        for (int m = 0; m < kM; ++m)
#pragma unroll
            for (int n = 0; n < 4; ++n) mma<T>(sums[m][n], a[m], b[n]);
    }
}

// Writes a thread's sums: into this block's part, or finished into out; (i, j) is the first one's
// place.
template <int kM, class F>
__device__ __forceinline__ void store_sums(float (&sums)[kM][4][4], int i, int j, int I, int J,
                                           float* parts, const F& epilogue) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = i + m * 16 + half * 8, column = j + n * 8;
                float &sum = sums[m][n][half * 2], &next = sums[m][n][half * 2 + 1];
                if (row >= I || column >= J) continue;
                if (!parts) {
                    epilogue.two(row, column, J, sum, next);
                    continue;
                }
                float* to = parts + (size_t(blockIdx.z) * I + row) * J + column;
                to[0] = sum;
                if (column + 1 < J) to[1] = next;
            }
}

// Blocks that a multiprocessor should hold at once: its registers are enough for two, if each
// thread keeps to 128; single numbers and tf32 take more.
template <class T, int kWidthA, int kWidthB>
constexpr int kBlocksAtOnce = sizeof(T) == 2 && kWidthA > 1 && kWidthB > 1 ? 2 : 1;

// What a block does. Empty where there are no tensor cores for it: nothing to compile there.
template <class A, class B, int kWidthA, int kWidthB, int kColumns, class F>
__device__ __forceinline__ void tensor_product(const A& a, const B& b, int I, int J, int L,
                                               int part_depth, float* parts, const F& epilogue) {
    using T = typename A::Number;
    extern __shared__ __align__(128) float shared[];
    __shared__ typename A::Row a_rows[kTensorRows];
    __shared__ typename B::Row b_rows[kColumns];
    constexpr int kAcross = kColumns / 32, kDown = 8 / kAcross, kM = kTensorRows / kDown / 16;
    constexpr int kStage = (kTensorRows + kColumns) * kTensorDepth<T>;
    T* const stages = reinterpret_cast<T*>(shared);
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const Place at(blockIdx.x, ceil_div(J, kColumns));
    const int i0 = at.row * kTensorRows, j0 = at.column * kColumns;
    const int row = warp / kAcross * (kM * 16), column = warp % kAcross * 32;
    StageFetch<A, kTensorRows, kWidthA> fetch_a(a, i0, thread, a_rows);
    StageFetch<B, kColumns, kWidthB> fetch_b(b, j0, thread, b_rows);
    __syncthreads();  // the meaning of the rows is known

    const int begin = blockIdx.z * part_depth, end = min(L, begin + part_depth);
    const int steps = ceil_div(end - begin, kTensorDepth<T>);
    AsyncCopies copies;
    const auto stage_of = [&](int step) { return stages + step % kStages * kStage; };
    const auto request = [&](int step) {
        if (step < steps) {
            T* stage = stage_of(step);
            fetch_a.request(copies, begin + step * kTensorDepth<T>, stage);
            fetch_b.request(copies, begin + step * kTensorDepth<T>,
                            stage + kTensorRows * kTensorDepth<T>);
        }
        copies.commit();  // a group also where it is empty, so that the wait counts right
    };
    const auto deliver = [&](int step) {
        if (step >= steps) return;
        fetch_a.deliver(stage_of(step));
        fetch_b.deliver(stage_of(step) + kTensorRows * kTensorDepth<T>);
    };
    for (int step = 0; step < kStages - 1; ++step) request(step), deliver(step);

    float sums[kM][4][4] = {};
    for (int step = 0; step < steps; ++step) {
        copies.template wait<kStages - 2>();
        __syncthreads();  // the copies of all threads are there, and step - 1 is multiplied
        request(step + kStages - 1);
        const T* stage = stage_of(step);
        multiply_stage<T, A::kDepthFast, B::kDepthFast, kColumns, kM>(
            stage, stage + kTensorRows * kTensorDepth<T>, row, column, lane, sums);
        deliver(step + kStages - 1);
    }
    store_sums<kM>(sums, i0 + row + lane / 4, j0 + column + lane % 4 * 2, I, J, parts, epilogue);
    if constexpr (F::kMoments)
        if (epilogue.strips.pieces && !parts)
            tile_moments<kM * 2, 8, kDown * 8, kColumns>(
                epilogue.strips, at.row, j0, warp / kAcross * 8 + lane / 4, shared,
                shared + kStage * sizeof(T) / sizeof(float),
                [&](int r, int c) { return sums[r / 2][c / 2][r % 2 * 2 + c % 2]; },
                [&](int r) { return row + r / 2 * 16 + lane / 4 + r % 2 * 8; },
                [&](int c) { return column + c / 2 * 8 + lane % 4 * 2 + c % 2; });
}

template <class A, class B, int kWidthA, int kWidthB, int kColumns, class F>
__global__ void __launch_bounds__(kTensorThreads,
                                  kBlocksAtOnce<typename A::Number, kWidthA, kWidthB>)
    tensor_product_kernel(A a, B b, int I, int J, int L, int part_depth, float* parts, F epilogue) {
    // nvcc warns of members that nothing names, so they are named for 7.5 as well.
    static_assert(int(A::kDepthFast) + int(B::kDepthFast) <= 2);
    if constexpr (kHasTensorCores)
        tensor_product<A, B, kWidthA, kWidthB, kColumns>(a, b, I, J, L, part_depth, parts,
                                                         epilogue);
}

template <int kWidthA, int kWidthB, int kColumns, class A, class B, class F>
bool launch_tensor_product(const A& a, const B& b, int64_t I, int64_t J, int64_t L,
                           const F& epilogue, DeviceMemory& memory, cudaStream_t stream) {
    constexpr int kDepth = kTensorDepth<typename A::Number>;
    constexpr int kBytes =
        kStages * (kTensorRows + kColumns) * kDepth * int(sizeof(typename A::Number));
    const int64_t tiles = int64_t(ceil_div(I, kTensorRows)) * ceil_div(J, kColumns);
    // Two blocks for each of 132 multiprocessors.
    const Parts parts(I, J, L, tiles, 264, kDepth, memory);
    CUDA_CHECK(cudaFuncSetAttribute(tensor_product_kernel<A, B, kWidthA, kWidthB, kColumns, F>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    tensor_product_kernel<A, B, kWidthA, kWidthB, kColumns, F>
        <<<dim3(tiles, 1, parts.count), kTensorThreads, kBytes, stream>>>(
            a, b, int(I), int(J), int(L), parts.depth, parts.sums, epilogue);
    CUDA_LAUNCHED();
    return parts.add(I, J, epilogue, stream);
}

// multiply() of gemm.cuh in tf32 or bf16. kWideA, kWideB: in copies of 16 bytes. Narrow tiles where
// out is narrow, and where copies are of single numbers (first and last layers; fewer kernels to
// build).
template <bool kWideA, bool kWideB, class A, class B, class F = Epilogue>
bool multiply_tensor(const A& a, const B& b, int64_t I, int64_t J, int64_t L, const F& epilogue,
                     DeviceMemory& memory, cudaStream_t stream) {
    using T = typename A::Number;
    static_assert(sizeof(T) == sizeof(typename B::Number));
    if (I == 0 || J == 0) return true;
    constexpr int kWidthA = kWideA ? kChunk<T> : 1, kWidthB = kWideB ? kChunk<T> : 1;
    if constexpr (kWideA && kWideB)
        if (J > 64)
            return launch_tensor_product<kWidthA, kWidthB, 128>(a, b, I, J, L, epilogue, memory,
                                                                stream);
    return launch_tensor_product<kWidthA, kWidthB, 64>(a, b, I, J, L, epilogue, memory, stream);
}

}  // namespace convoy::CONVOY_DEVICE
