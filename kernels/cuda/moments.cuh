// moments.cuh — sums over the rows of a matrix, per column, and statistics of columns, per strip of
// rows. A product on tensor cores computes the statistics of its tiles (finish_tile.cuh).
// Ops: moments.cu, batch_norm.cu, column_sums.cu
//
//   A strip is `height` rows. Groups of images end anywhere, so a strip may contain pieces of
//   several groups. For a piece with n rows, three numbers per column are kept:
//
//      center    among the values, or close to their mean
//      rest      Σ (x − center)                mean = center + rest/n
//      squares   Σ (x − center)²               Σ (x − mean)² = squares − rest²/n
//
//   Subtracting a nearby center first avoids cancellation when a mean is large, its variance tiny.
//
//            group 0 │ group 1       │2│ 3            From each piece to the next, strip + group
//   strip    0   │   1   │   2   │   3   │            rises. So strip + group is a different
//   place    0   │1  │2  │   3   │  4│5│6             place for each piece.
#pragma once

#include "kernels/cuda/elements.h"

namespace convoy::CONVOY_DEVICE {

// Blocks of 256 threads: threadIdx.x walks columns, or packs of them, so neighbours read
// neighbours; threadIdx.y walks rows.
constexpr int kColumnThreads = 256;
// threadIdx.x has one thread per pack of a row, rounded up to a power of two, at most a warp.
inline dim3 column_block(int packs) {
    unsigned lanes = 1;
    while (lanes < 32 && int(lanes) < packs) lanes *= 2;
    return {lanes, kColumnThreads / lanes};
}

// Adds sums[e] of each column's threads in order; the column's first thread gets the result. All
// threads call. They may call again at once: after the last barrier each reads only its own entry.
template <class T, int kCount>
__device__ void add_columns(T (&sums)[kCount]) {
    __shared__ T parts[kCount][kColumnThreads];
    const int lanes = blockDim.x, thread = threadIdx.y * lanes + threadIdx.x;
    for (int e = 0; e < kCount; ++e) parts[e][thread] = sums[e];
    __syncthreads();  // all partial sums are there
    for (int i = thread; i < kCount * lanes; i += kColumnThreads) {
        T* const column = &parts[i / lanes][i % lanes];
        T sum = *column;
        for (int at = lanes; at < kColumnThreads; at += lanes) sum += column[at];
        *column = sum;
    }
    __syncthreads();  // all sums are there
    if (threadIdx.y > 0) return;
    for (int e = 0; e < kCount; ++e) sums[e] = parts[e][threadIdx.x];
}

// Adds sums[e] over a block of kSumThreads threads in a tree. Thread 0 gets the result.
constexpr int kSumThreads = 256;
template <int kCount>
__device__ void add_threads(double (&sums)[kCount]) {
    __shared__ double parts[kCount][kSumThreads];
    const int t = threadIdx.x;
    for (int e = 0; e < kCount; ++e) parts[e][t] = sums[e];
    for (int by = kSumThreads / 2; by > 0; by /= 2) {
        __syncthreads();  // the sums that are added now are complete
        for (int e = 0; e < kCount && t < by; ++e) parts[e][t] += parts[e][t + by];
    }
    for (int e = 0; e < kCount; ++e) sums[e] = parts[e][0];
}

// Calls f(T(), columns per thread at once, grid, block) for tensors of one type and shape.
template <class F>
void with_columns(std::initializer_list<Tensor> tensors, unsigned slabs, F&& f) {
    const int C = tensors.begin()->C;
    with_pack(tensors, [&](auto type, auto wide) {
        const dim3 block = column_block(C / wide());
        f(type, wide, dim3(ceil_div(C, block.x * wide()), slabs), block);
    });
}
template <int kWide>
__device__ __forceinline__ int first_channel() {
    return int(blockIdx.x * blockDim.x + threadIdx.x) * kWide;
}

// Groups of images of `image_rows` rows each.
struct Groups {
    const int* bounds = nullptr;  // on the device: group g is images [bounds[g], bounds[g+1])
    int count = 0, C = 0;         // C: columns of a row
    int64_t image_rows = 0;

    __device__ int64_t first_row(int g) const { return bounds[g] * image_rows; }
    __device__ int64_t rows(int g) const { return (bounds[g + 1] - bounds[g]) * image_rows; }
};

struct Strips : Groups {
    int64_t height = 0;
    float* pieces = nullptr;  // [place][center, rest, squares][c]; null: not wanted

    __device__ float* piece(int strip, int g) const { return pieces + size_t(strip + g) * 3 * C; }
    __device__ int group_of(int64_t row) const {
        const int image = int(row / image_rows);
        int low = 0, high = count;  // bounds[low] <= image < bounds[high]
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            if (bounds[middle] <= image)
                low = middle;
            else
                high = middle;
        }
        return low;
    }
    // Calls work(g, first row, row after the last) for each piece of a strip, in order.
    template <class Work>
    __device__ void for_each_piece(int strip, const Work& work) const {
        int64_t begin = strip * height;
        const int64_t end = min(begin + height, first_row(count));
        for (int g = begin < end ? group_of(begin) : count; begin < end; ++g) {
            const int64_t stop = min(end, first_row(g + 1));
            if (stop > begin) work(g, begin, stop);  // else a group without images
            begin = stop;
        }
    }
};

}  // namespace convoy::CONVOY_DEVICE
