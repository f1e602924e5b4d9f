// tensor_gemm.cuh — the product of gemm.cuh on tensor cores: the same operands, the same results up
// to the rounding of the factors.
//
//   out[i][j] = epilogue(Σ_l a(i,l) · b(j,l))     sums in fp32; floats are rounded to tf32 before,
//                                               bf16 are multiplied as they are
//
//   A block computes 128 × 128 (or 128 × 64, 64 × 128) numbers of out, in steps of 128 bytes along
//   l: 32 floats or 64 bf16. Each of its 8 warps has 64×32 (32×32) sums in registers. While the
//   warps multiply step s, cp.async fetches the steps s+1 and s+2 into two other stages of shared
//   memory.
//   On Hopper, bf16 can go another way: tma_gemm.cuh.
//
//   grid      (⌈J/columns⌉·⌈I/rows⌉, 1, parts) blocks of 256 threads. If there are too few tiles
//             for a GPU, l is cut into parts as in gemm.cuh.
//   shared    3 stages × 128 bytes × (rows + columns): 96 KB (72 KB), and up to 2 KB of tables
//             with the decoded slow index of each operand (gemm.cuh). An operand whose fast index
//             is the depth is stored by rows. A row has 128 bytes, which are 8 chunks of 16 bytes.
//             Chunk c of row i is at place c ^ (i % 8):
//
//               row 0  0 1 2 3 4 5 6 7      ldmatrix reads one chunk of 8 rows
//               row 1  1 0 3 2 5 4 7 6      at a time: 8 places that differ,
//               row 2  2 3 0 1 6 7 4 5      so it uses all 32 banks.
//               row 3  3 2 1 0 7 6 5 4  …
//
//             An operand whose fast index is the row is stored by depths. Chunk c of depth l is,
//               of floats  at place c ^ 2·(l % 4): a warp reads 8 neighbouring rows (two chunks) of
//                          4 depths, 32 banks;
//               of bf16    at place c ^ (l % 8), 64 rows after 64 rows: ldmatrix.trans reads one
//                          chunk of 8 depths, and transposes it.
//   bytes     4·L·(I·⌈J/columns⌉ + J·⌈I/rows⌉) read, mostly from the L2 cache; bf16 halves this. So
//             32 (21) operations per byte, or 64 (43); 4·I·J bytes written, or 2·I·J. A warp reads
//             12 KB of shared memory for 64·32·32 products of tf32, or 64·32·64 of bf16.
//   order     l rises in steps of 8 (bf16: 16) within a part. The hardware orders the sums inside a
//             step. Parts are added in order. No atomics: the same bits on every run.
//   out       finish_tile.cuh
//
// A product of 16×8×16 is one instruction (HMMA), and every other instruction of the loop delays
// the next product. So addresses are computed before the loop: the place of a copy or fragment in a
// stage is one register plus constants. instructions.txt counts the remaining instructions.
//
// Every copy has 16 bytes. This works because conv2d.cu pads the channels, so that each row or tap
// of an operand has complete chunks.
#pragma once

#include "kernels/cuda/tma_gemm.cuh"

namespace convoy::CONVOY_DEVICE {

template <class T>
constexpr int kChunk = 16 / int(sizeof(T));  // numbers in one copy
template <class T>
constexpr int kTensorDepth = 8 * kChunk<T>;
template <class T>
constexpr int kMmaDepth = 32 / int(sizeof(T));  // depth of one instruction

// The byte offset of number (row, l) of an operand with kRows rows, in its part of a stage.
template <class T, bool kDepthFast, int kRows>
struct Swizzle {
    static constexpr int kPitch = kDepthFast || sizeof(T) == 2 ? 128 : kRows * int(sizeof(T));

    static __device__ __forceinline__ int place(int row, int l) {
        constexpr int kSize = kChunk<T>;
        if constexpr (kDepthFast)
            return row * kPitch + (l / kSize ^ row % 8) * 16 + l % kSize * int(sizeof(T));
        if constexpr (kSize == 8)
            return (row / 64 * 64 + l) * kPitch + (row / 8 % 8 ^ l % 8) * 16 + row % 8 * 2;
        return l * kPitch + (row / kSize ^ l % 4 * 2) * 16 + row % kSize * int(sizeof(T));
    }
    // Computes place(row + m, l + k) from place(row, l). Requires that row and m, and l and k, have
    // no bit in common, that m < 64, and that m (fast depth) or k (fast rows) does not change the
    // turn. m and k are constants, so this is one instruction, and the sum is part of the address.
    static __device__ __forceinline__ int step(int place, int m, int k) {
        return kDepthFast ? (place ^ k * int(sizeof(T))) + m * kPitch
                          : (place ^ m * int(sizeof(T))) + k * kPitch;
    }
};

// Copies an operand to shared memory, stage after stage, in chunks of 16 bytes.
template <class Operand, int kRows>
class StageFetch {
 public:
    using T = typename Operand::Element;
    using Row = typename Operand::Row;
    using Depth = typename Operand::Depth;
    static constexpr bool kDepthFast = Operand::kDepthFast;
    // The decoded slow index, in shared memory: for each row, or for the depths of two stages.
    struct NoTable {};
    using Table = std::conditional_t<
        !Operand::kTable, NoTable,
        std::conditional_t<kDepthFast, Row, Depth>[kDepthFast ? kRows : 2 * kTensorDepth<T>]>;

    // Copies rows from first_row and depths from l on. After a barrier the table of rows is valid.
    __device__ __forceinline__ StageFetch(const Operand& operand, int first_row, int l, int thread,
                                          Table& table)
        : operand_(operand),
          table_(table),
          row_(kDepthFast ? thread / kAcross : thread % kAcross * kChunk<T>),
          depth_(kDepthFast ? thread % kAcross * kChunk<T> : thread / kAcross),
          place_(Swizzle<T, kDepthFast, kRows>::place(row_, depth_)),
          l_(l) {
        if constexpr (kDepthFast && Operand::kTable) {
            if (thread < kRows) table[thread] = operand.row(first_row + thread);
        }
        if constexpr (kDepthFast)
            own_depth_ = operand.depth(l + depth_), first_row_ = first_row + row_;
        else
            own_row_ = operand.row(first_row + row_);
    }
    // Fills the table for `step`, which begins at depth l. The warps take turns.
    __device__ __forceinline__ void describe(int step, int l, int thread) {
        if constexpr (!kDepthFast && Operand::kTable) {
            const int own = (thread - step * kTensorDepth<T>)&(kTensorThreads - 1);
            if (own < kTensorDepth<T>)
                table_[step % 2 * kTensorDepth<T> + own] = operand_.depth(l + own);
        }
    }
    // Starts the copies of the next stage.
    __device__ __forceinline__ void request(AsyncCopies& copies, char* stage) {
        Found<T> found[kEach];
#pragma unroll
        for (int e = 0; e < kEach; ++e) found[e] = find(e);
#pragma unroll
        for (int e = 0; e < kEach; ++e)
            copies.copy(stage + place_ + e * kApart * Swizzle<T, kDepthFast, kRows>::kPitch,
                        found[e].at, found[e].there);
        l_ += kTensorDepth<T>;
        if constexpr (kDepthFast)
            operand_.advance(own_depth_, l_ + depth_, kTensorDepth<T>);
        else
            half_ ^= kTensorDepth<T>;
    }

 private:
    // Copies along the fast direction; distance of a thread's copies along the other; their number.
    static constexpr int kAcross = (kDepthFast ? kTensorDepth<T> : kRows) / kChunk<T>;
    static constexpr int kApart = kTensorThreads / kAcross;
    static constexpr int kEach = (kDepthFast ? kRows : kTensorDepth<T>) / kApart;
    static_assert(kApart % 8 == 0, "the copies of a thread have the same turn");

    __device__ __forceinline__ Found<T> find(int e) const {
        if constexpr (kDepthFast && Operand::kTable)
            return operand_.find(table_[row_ + e * kApart], own_depth_);
        else if constexpr (kDepthFast)
            return operand_.find(operand_.row(first_row_ + e * kApart), own_depth_);
        else if constexpr (Operand::kTable)
            return operand_.find(own_row_, table_[half_ + depth_ + e * kApart]);
        else
            return operand_.find(own_row_, operand_.depth(l_ + depth_ + e * kApart));
    }

    const Operand& operand_;
    Table& table_;
    const int row_, depth_, place_;  // of this thread's first copy in the stage
    int l_, half_ = 0, first_row_;
    Row own_row_;
    Depth own_depth_;
};

// Loads one lane's fragments of an operand from a stage. The warp's fragments begin at row `row`.
template <class T, bool kDepthFast, int kRows>
struct Fragments {
    using S = Swizzle<T, kDepthFast, kRows>;
    int own;

    static __device__ Fragments of_a(int row, int lane) {
        if constexpr (kDepthFast) return {S::place(row + lane % 16, lane / 16 * kChunk<T>)};
        if constexpr (sizeof(T) == 2)
            return {S::place(row + lane / 8 % 2 * 8, lane % 8 + lane / 16 * 8)};
        return {S::place(row + lane / 4, lane % 4)};
    }
    static __device__ Fragments of_b(int column, int lane) {
        if constexpr (kDepthFast)
            return {S::place(column + lane % 8 + lane / 16 * 8, lane / 8 % 2 * kChunk<T>)};
        if constexpr (sizeof(T) == 2) return {S::place(column + lane / 16 * 8, lane % 16)};
        return {S::place(column + lane / 4, lane % 4)};
    }
    // Loads rows m … m+15, depths l … l+7 (bf16: l+15) into four registers: one fragment of a, or
    // two fragments of b. From register to register, in a the row changes first, in b the depth.
    template <bool kOfA>
    __device__ __forceinline__ void load(uint32_t (&to)[4], const char* stage, int m, int l) const {
        if constexpr (kDepthFast)
            load_matrices(to, stage + S::step(own, m, l));
        else if constexpr (sizeof(T) == 2)
            load_matrices_transposed(to, stage + S::step(own, m, l));
        else
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = kOfA ? i % 2 : i / 2, depth = kOfA ? i / 2 : i % 2;
                to[i] = *reinterpret_cast<const uint32_t*>(
                    stage + S::step(own, m + row * 8, l + depth * 4));
            }
    }
};

// Rounds floats of a fragment to tf32. Leaves bf16 unchanged.
template <class T, int kCount>
__device__ __forceinline__ void round_fragment(uint32_t (&numbers)[kCount]) {
    if constexpr (sizeof(T) == 4)
        for (uint32_t& number : numbers) number = to_tf32(__uint_as_float(number));
}

// Adds one stage to the 16·kM × 32 sums of one warp.
template <class T, int kM, class FragmentsA, class FragmentsB>
__device__ __forceinline__ void multiply_stage(const char* a_stage, const char* b_stage,
                                               const FragmentsA& fragments_a,
                                               const FragmentsB& fragments_b,
                                               float (&sums)[kM][4][4]) {
#pragma unroll
    for (int l = 0; l < kTensorDepth<T>; l += kMmaDepth<T>) {
        uint32_t a[kM][4], b[4][2];
#pragma unroll
        for (int m = 0; m < kM; ++m) {
            fragments_a.template load<true>(a[m], a_stage, m * 16, l);
            round_fragment<T>(a[m]);
        }
#pragma unroll
        for (int n = 0; n < 4; n += 2) {
            uint32_t both[4];
            fragments_b.template load<false>(both, b_stage, n * 8, l);
            round_fragment<T>(both);
            b[n][0] = both[0], b[n][1] = both[1], b[n + 1][0] = both[2], b[n + 1][1] = both[3];
        }
#pragma unroll
        for (int m = 0; m < kM; ++m)
#pragma unroll
            for (int n = 0; n < 4; ++n) mma<sizeof(T) == 2>(sums[m][n], a[m], b[n]);
    }
}

template <class A, class B, int kRows, int kColumns, class F>
__global__ void __launch_bounds__(kTensorThreads, kBlocksAtOnce)
    tensor_product_kernel(A a, B b, int I, int J, int L, int part_depth, float* parts, F epilogue) {
    // nvcc warns of members that nothing names, so they are named for 7.5 as well.
    static_assert(int(A::kDepthFast) + int(B::kDepthFast) + int(A::kTable) + int(B::kTable) <= 4);
    if constexpr (kHasTensorCores) {
        using T = typename A::Element;
        using FetchA = StageFetch<A, kRows>;
        using FetchB = StageFetch<B, kColumns>;
        extern __shared__ __align__(1024) char shared[];
        __shared__ typename FetchA::Table a_table;
        __shared__ typename FetchB::Table b_table;
        // A warp has kM fragments below each other, kN side by side; kDown warps share columns.
        constexpr int kN = 4, kDown = 8 / (kColumns / 8 / kN), kM = kRows / kDown / 16;
        constexpr int kDepth = kTensorDepth<T>;
        constexpr int kStageA = kRows * 128, kStage = kStageA + kColumns * 128;
        static_assert(
            kStages * kStage + sizeof a_table + sizeof b_table + kColumns * sizeof(float) <=
                99 * 1024,
            "a block has no more shared memory on GPUs of compute capability 8.6 and 8.9");
        const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
        const Place at(blockIdx.x, ceil_div(J, kColumns));
        const int i0 = at.row * kRows, j0 = at.column * kColumns;
        const int row = warp % kDown * (kM * 16), column = warp / kDown * (kN * 8);
        const int begin = blockIdx.z * part_depth, end = min(L, begin + part_depth);
        const int steps = ceil_div(end - begin, kDepth);

        FetchA fetch_a(a, i0, begin, thread, a_table);
        FetchB fetch_b(b, j0, begin, thread, b_table);
        AsyncCopies copies;
        const auto describe = [&](int step) {
            fetch_a.describe(step, begin + step * kDepth, thread);
            fetch_b.describe(step, begin + step * kDepth, thread);
        };
        const auto request = [&](int step, int stage) {
            if (step < steps) {
                fetch_a.request(copies, shared + stage);
                fetch_b.request(copies, shared + stage + kStageA);
            }
            copies.commit();  // even if the group is empty, so that wait() counts correctly
        };
        describe(0), describe(1);
        __syncthreads();  // the tables are there
        for (int step = 0; step < kStages - 1; ++step) request(step, step * kStage);
        __syncthreads();  // the tables have been read
        describe(2);

        const auto fragments_a = Fragments<T, A::kDepthFast, kRows>::of_a(row, lane);
        const auto fragments_b = Fragments<T, B::kDepthFast, kColumns>::of_b(column, lane);
        float sums[kM][kN][4] = {};
        int from = 0, to = (kStages - 1) * kStage;  // the stages that are multiplied and fetched
        for (int step = 0; step < steps; ++step) {
            const char *const a_stage = shared + from, *const b_stage = a_stage + kStageA;
            copies.template wait<kStages - 2>();
            // Copies and tables of all threads are there, and step - 1 is multiplied.
            __syncthreads();
            request(step + kStages - 1, to);
            describe(step + kStages);
            multiply_stage<T, kM>(a_stage, b_stage, fragments_a, fragments_b, sums);
            to = from;
            from = from == (kStages - 1) * kStage ? 0 : from + kStage;
        }
        finish_tile<kRows, kColumns>(shared, sums, row, column, at, I, J, parts, epilogue);
    }
}

// multiply() of gemm.cuh in tf32 or bf16. Returns whether the tiles had complete sums, because l
// was not cut. Narrow tiles where out is narrow; low ones only for gradients of weights (slow
// depth).
//   tma   of bf16: the columns of the widest tile of tma_gemm.cuh, if that takes the operands; or 0
template <class A, class B, class F>
bool multiply_tensor(const A& a, const B& b, int64_t I, int64_t J, int64_t L, const F& epilogue,
                     int tma, DeviceMemory& memory) {
    static_assert(sizeof(typename A::Element) == sizeof(typename B::Element));
    if (I == 0 || J == 0) return true;
    const auto launch = [&](auto by_tma, auto rows, auto columns) {
        constexpr int kRows = decltype(rows)::value, kColumns = decltype(columns)::value;
        constexpr int kBytes = kStages * (kRows + kColumns) * 128;
        const int64_t tiles = int64_t(ceil_div(I, kRows)) * ceil_div(J, kColumns);
        // As many blocks as 132 multiprocessors run at once.
        const Parts parts(I, J, L, tiles, 132 * blocks_at_once(kColumns),
                          kTensorDepth<typename A::Element>, F::kMoments, memory);
        const auto start = [&](auto product, int threads, const auto& a, const auto& b) {
            CUDA_CHECK(
                cudaFuncSetAttribute(product, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
            product<<<dim3(tiles, 1, parts.count), threads, kBytes, memory.stream>>>(
                a, b, int(I), int(J), int(L), parts.depth, parts.sums, epilogue);
            CUDA_LAUNCHED();
        };
        if constexpr (by_tma()) {
            using BoxesA = Boxes<A::kDepthFast, kRows>;
            using BoxesB = Boxes<B::kDepthFast, kColumns>;
            start(tma_product_kernel<BoxesA, BoxesB, kRows, kColumns, F>, kTmaThreads, BoxesA(a),
                  BoxesB(b));
        } else {
            start(tensor_product_kernel<A, B, kRows, kColumns, F>, kTensorThreads, a, b);
        }
        return parts.add(I, J, epilogue, memory.stream);
    };
    constexpr std::integral_constant<int, kTensorRows> kWhole;
    constexpr std::integral_constant<int, kTensorRows / 2> kHalf;
    constexpr std::integral_constant<int, kTensorRows * 2> kWide;
    const auto choose = [&](auto by_tma) {
        if (J <= kHalf) return launch(by_tma, kWhole, kHalf);
        if constexpr (!A::kDepthFast)
            if (I <= kHalf) return launch(by_tma, kHalf, kWhole);
        if constexpr (by_tma())
            if (tma == kWide && J % kWide == 0) return launch(by_tma, kWhole, kWide);
        return launch(by_tma, kWhole, kWhole);
    };
    if constexpr (sizeof(typename A::Element) == 2)
        if (tma > 0 && L > 0 && fits_boxes(a) && fits_boxes(b)) return choose(std::true_type());
    return choose(std::false_type());
}

}  // namespace convoy::CONVOY_DEVICE
