// stored_tile.cuh — the end of a product on tensor cores (tensor_gemm.cuh): the sums of a block
// pass through shared memory, so that a thread writes 16 neighbouring bytes. If statistics of the
// columns are wanted (moments.cuh), they use this memory too; 12·⌈I/128⌉·J bytes written.
#pragma once

#include "kernels/cuda/moments.cuh"

namespace convoy::CONVOY_DEVICE {

constexpr int kTensorThreads = 256;  // of a block

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
    __syncthreads();  // the last stage is multiplied
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
    __syncthreads();  // the tile is there
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
// All threads of the block call it. The center of a piece is its first row. kBytes: of `shared`.
template <class U, int kRows, int kColumns, int kBytes>
__device__ __forceinline__ void tile_moments(const Strips& strips, int strip, int first_column,
                                             char* shared) {
    using S = StoredTile<U, kColumns>;
    constexpr int kPitch = kColumns + 4;  // 4: banks that differ
    constexpr int kTileBytes = kRows * S::kPitch * int(sizeof(U)), kSums = S::kApart * kPitch;
    static_assert(kTileBytes + 2 * kSums * sizeof(float) <= kBytes);
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
        __syncthreads();  // the sums of all threads are there
        if (thread < kColumns && first_column + thread < strips.C) {
            float* to = strips.piece(strip, g) + first_column + thread;
            to[0] = load(tile + first * S::kPitch + thread);
            to[strips.C] = total(rests), to[2 * strips.C] = total(squares);
        }
        __syncthreads();  // the sums are read
    });
}

}  // namespace convoy::CONVOY_DEVICE
