// finish_tile.cuh — the end of a product on tensor cores: a block stores its tile of sums.
//
//   The sums of a warp are fragments (mma.cuh). They pass through the memory of the stages, so that
//   a thread writes 16 neighbouring bytes. If statistics of the columns are wanted (moments.cuh),
//   they are computed from this memory, in which a tile is a strip; 12·⌈I/128⌉·J bytes written.
//   The threads of a block that multiply call every function together.
#pragma once

#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/moments.cuh"

namespace convoy::CONVOY_DEVICE {

// Also computes statistics of the columns of out, if l is not cut into parts.
template <class T>
struct EpilogueWithMoments : Epilogue<T> {
    static constexpr bool kMoments = true;
    Strips strips;
};

constexpr int kTensorRows = 128, kTensorThreads = 256, kStages = 3;
// Blocks that a multiprocessor should run at once. It limits each thread to 128 registers.
constexpr int kBlocksAtOnce = 2;

// The numbers of a block in shared memory, before they are stored. A thread stores kCount
// neighbours, and so in every row that is a multiple of kApart further down.
template <class U, int kColumns>
struct StoredTile {
    static constexpr int kCount = 16 / int(sizeof(U)), kPitch = kColumns + 8;  // 8: other banks
    static constexpr int kAcross = kColumns / kCount, kApart = kTensorThreads / kAcross;
};
// Writes the sums of a block from the fragments to memory. They pass through shared memory, row by
// row, so that a thread writes 16 bytes of a row and neighbouring threads write neighbours.
//   U          the type of the written numbers
//   put(i, j, values)   takes 16 bytes of numbers of row i, or 1
template <class U, int kRows, int kColumns, int kM, int kN, class Put>
__device__ __forceinline__ void store_tile(char* shared, const float (&sums)[kM][kN][4], int row,
                                           int column, int i0, int j0, int I, int J, bool packs,
                                           const Put& put) {
    using S = StoredTile<U, kColumns>;
    constexpr int kCount = S::kCount, kPitch = S::kPitch, kAcross = S::kAcross;
    U* const tile = reinterpret_cast<U*>(shared);
    const int thread = threadIdx.x, lane = thread % 32;
    sync_first<kTensorThreads>();  // the last stage is multiplied
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int n = 0; n < kN; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float two[2] = {sums[m][n][half * 2], sums[m][n][half * 2 + 1]};
                store_pack(tile + (row + lane / 4 + m * 16 + half * 8) * kPitch + column +
                               lane % 4 * 2 + n * 8,
                           two);
            }
    sync_first<kTensorThreads>();  // the tile is there
    const int c = thread % kAcross * kCount;
    for (int r = thread / kAcross; r < kRows && i0 + r < I; r += S::kApart) {
        float values[kCount];
        load_pack(values, tile + r * kPitch + c);
        if (packs && j0 + c < J) {
            put(i0 + r, j0 + c, values);
        } else {
            for (int e = 0; e < kCount && j0 + c + e < J; ++e) {
                float one[1] = {load(tile + r * kPitch + c + e)};
                put(i0 + r, j0 + c + e, one);
            }
        }
    }
}

// Computes the pieces (moments.cuh) of a block's tile, which is a strip, from the numbers that
// store_tile() has left in shared memory. A thread takes the rows and columns that it has stored.
// All threads of the block call it. The center of a piece is its first row.
template <class U, int kRows, int kColumns>
__device__ __forceinline__ void tile_moments(const Strips& strips, int strip, int first_column,
                                             char* shared) {
    using S = StoredTile<U, kColumns>;
    constexpr int kPitch = kColumns + 4;  // 4: banks that differ
    constexpr int kTileBytes = kRows * S::kPitch * int(sizeof(U)), kSums = S::kApart * kPitch;
    static_assert(kTileBytes + 2 * kSums * sizeof(float) <= kStages * (kRows + kColumns) * 128);
    const U* const tile = reinterpret_cast<const U*>(shared);
    float* const rests = reinterpret_cast<float*>(shared + kTileBytes);
    float* const squares = rests + kSums;
    const int thread = threadIdx.x, part = thread / S::kAcross, c = thread % S::kAcross * S::kCount;
    const auto total = [&](const float* from) {
        float sum = 0;
#pragma unroll
        for (int p = 0; p < S::kApart; ++p) sum += from[p * kPitch + thread];
        return sum;
    };
    strips.for_each_piece(strip, [&](int g, int64_t begin, int64_t end) {
        const int first = int(begin - strip * strips.height), behind = int(end - begin) + first;
        float center[S::kCount], v[S::kCount], rest[S::kCount] = {}, square[S::kCount] = {};
        load_pack(center, tile + first * S::kPitch + c);
#pragma unroll
        for (int r = part; r < kRows; r += S::kApart) {
            if (r < first || r >= behind) continue;
            load_pack(v, tile + r * S::kPitch + c);
#pragma unroll
            for (int e = 0; e < S::kCount; ++e) {
                const float off = v[e] - center[e];
                rest[e] += off, square[e] += off * off;
            }
        }
        store_pack(rests + part * kPitch + c, rest);
        store_pack(squares + part * kPitch + c, square);
        sync_first<kTensorThreads>();  // the sums of all threads are there
        if (thread < kColumns && first_column + thread < strips.C) {
            float* to = strips.piece(strip, g) + first_column + thread;
            to[0] = load(tile + first * S::kPitch + thread);
            to[strips.C] = total(rests), to[2 * strips.C] = total(squares);
        }
        sync_first<kTensorThreads>();  // the sums are read
    });
}

// Stores the sums of the block's tile `at`: as they are if the depth is cut into parts, or else
// with the epilogue. Those of the warp begin at (row, column) of the tile.
template <int kRows, int kColumns, int kM, int kN, class F>
__device__ __forceinline__ void finish_tile(char* shared, float (&sums)[kM][kN][4], int row,
                                            int column, const Place& at, int I, int J, float* parts,
                                            const F& epilogue) {
    const int i0 = at.row * kRows, j0 = at.column * kColumns, lane = threadIdx.x % 32;
    if (parts) {
        float* const own = parts + size_t(blockIdx.z) * I * J;
        store_tile<float, kRows, kColumns>(
            shared, sums, row, column, i0, j0, I, J, J % 4 == 0,
            [&](int i, int j, auto& values) { store_pack(own + size_t(i) * J + j, values); });
        return;
    }
    using Out = typename F::Out;
#pragma unroll
    for (int n = 0; n < kN * 2; ++n) {
        const int j = j0 + column + n / 2 * 8 + lane % 4 * 2 + n % 2;
        const float bias = epilogue.bias && j < J ? epilogue.bias[j] : 0;
#pragma unroll
        for (int m = 0; m < kM * 2; ++m) {
            float& sum = sums[m / 2][n / 2][m % 2 * 2 + n % 2];
            sum = epilogue.finished(sum, bias);
        }
    }
    store_tile<Out, kRows, kColumns>(
        shared, sums, row, column, i0, j0, I, J, epilogue.template takes_packs<16 / sizeof(Out)>(J),
        [&](int i, int j, auto& values) { epilogue.put(i, j, J, values); });
    if constexpr (F::kMoments)
        if (epilogue.strips.pieces)
            tile_moments<Out, kRows, kColumns>(epilogue.strips, at.row, j0, shared);
}

}  // namespace convoy::CONVOY_DEVICE
