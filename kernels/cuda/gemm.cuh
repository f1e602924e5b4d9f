// gemm.cuh — the product behind convolutions and linear layers, plain: tiles in shared memory.
//
//   out[i][j] = epilogue(Σ_l a(i,l) · b(j,l))          i < I, j < J, l < L; out is I × J, dense
//
//               l →               A block makes 128×128 numbers of out. It walks over l in steps
//            ┌──┬──┬──┬──┐        of 8: all threads fetch a 128×8 piece of a and of b into shared
//  128 rows  │  │▓▓│  │  │ a      memory. Then each of the 16×16 threads adds 8 products to each
//            └──┴──┴──┴──┘        of its 8×8 sums: rows 4·y … 4·y+3 and 64 further down, columns
//              8                  likewise. Each fetched number is used 128 times.
//
//   grid      (tiles, 1, parts) blocks of 256 threads. If out has at most 64 rows (or columns), a
//             tile has 64 rows (or columns), and a thread has 4. If there are too few tiles for the
//             GPU, l is cut into parts. Each part writes its own sums, and epilogue_kernel adds
//             them.
//   shared    2·8·(128+4) floats: 8.4 KB. A step along l reads 16 numbers, four at a time, for 64
//             multiply-adds. A row of 132 keeps them aligned, and threads that write neighbouring
//             l fall into other banks.
//   numbers   floats; tensor_gemm.cuh multiplies bf16
//   bytes     4·L·(I·⌈J/128⌉ + J·⌈I/128⌉) read, from the L2 cache mostly; 4·I·J written. Bound by
//             arithmetic on the fp32 units: 64 independent sums hide their latency.
//   order     l rises within a part, parts are added in order: the same bits on every run.
//
// An operand maps a row and a depth to an address. Row and depth are decoded once for several
// numbers, because decoding an index of a convolution costs more than a product:
//   static constexpr bool kDepthFast   neighbours along l are neighbours in memory (else: along i)
//   static constexpr bool kTable       whether to keep the decoded slow index in a table
//   Element                            type of the numbers: float or bf16
//   Row row(int i) / Depth depth(int l)
//   void advance(Depth&, int l, int step)   makes depth(l) of depth(l − step)
//   Found<Element> find(Row, Depth)     a number outside of the operand counts as 0
#pragma once

#include <algorithm>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/pixel.cuh"

namespace convoy::CONVOY_DEVICE {

constexpr int kTile = 128, kDepthStep = 8, kTilePad = 4, kProductThreads = 256;

// The pixels of dx that rows 0, 1, … of a product compute: all pixels, or every `stride`th row and
// column of an image, beginning at `first`.
struct OutRows {
    bool all = true;
    int H = 0, W = 0, stride_h = 1, stride_w = 1, first_h = 0, first_w = 0;
    Divisor rows, columns;  // computed per image

    __device__ __forceinline__ size_t operator[](int i) const {
        if (all) return size_t(i);
        const int line = i / columns, w = i - line * columns.by;
        const int n = line / rows, h = line - n * rows.by;
        return (size_t(n) * H + h * stride_h + first_h) * W + w * stride_w + first_w;
    }
};

// What is applied to each sum. T: the type of the numbers in out.
template <class T>
struct Epilogue {
    using Out = T;
    static constexpr bool kMoments = false;
    T* out;
    const float* bias = nullptr;  // by column
    bool relu = false;
    const T* mask = nullptr;  // layout of out; the result is 0 where mask <= 0
    bool accumulate = false;  // out += instead of =
    OutRows rows = {};

    // With bias and relu, rounded to a T.
    __device__ __forceinline__ float finished(float sum, float bias_of_column) const {
        sum += bias_of_column;
        if (relu && sum < 0) sum = 0;  // in this form a NaN stays a NaN
        return rounded<T>(sum);
    }
    // Stores kCount finished numbers of row i from column j on, or their sum with `out`, masked.
    template <int kCount>
    __device__ __forceinline__ void put(int i, int j, int J, float (&sums)[kCount]) const {
        const size_t at = rows[i] * J + j;
        if (accumulate) {
            float before[kCount];
            load_pack(before, out + at);
#pragma unroll
            for (int e = 0; e < kCount; ++e) sums[e] += before[e];
        }
        if (mask) mask_pack(sums, mask + at);
        store_pack(out + at, sums);
    }
    // A single sum.
    __device__ __forceinline__ void operator()(int i, int j, int J, float& sum) const {
        float one[1] = {finished(sum, bias ? bias[j] : 0.0f)};
        put(i, j, J, one);
        sum = one[0];
    }
    // Whether packs of kCount columns are aligned in out and mask.
    template <int kCount>
    __device__ __forceinline__ bool takes_packs(int J) const {
        using P = Pack<T, kCount>;
        return J % kCount == 0 && fits<P>(out) && fits<P>(mask);
    }
};
// The address of a number of an operand; there = false: it lies outside and counts as 0.
template <class T>
struct Found {
    const T* at;
    bool there;
};

// A matrix of `rows` × `depths` numbers. Those along its fast index are neighbours in memory.
template <bool DepthFast, class T>
struct Matrix {
    using Element = T;
    static constexpr bool kDepthFast = DepthFast, kTable = false;
    const T* data;
    int rows, depths;

    using Row = int;
    using Depth = int;
    __device__ Row row(int i) const { return i; }
    __device__ Depth depth(int l) const { return l; }
    __device__ void advance(Depth& depth, int l, int) const { depth = l; }
    __device__ __forceinline__ Found<T> find(Row i, Depth l) const {
        const T* at = data + (DepthFast ? int64_t(i) * depths + l : int64_t(l) * rows + i);
        return {at, i < rows && l < depths};
    }
    operator PixelGrid() const {  // an image of one line
        const int slow = DepthFast ? rows : depths, fast = DepthFast ? depths : rows;
        return {data, 1, 1, slow, 1, 1, slow, 1, fast};
    }
};

// Fetches a piece of an operand, kRows rows from (first row, l) on, into tile[depth][row].
template <class Operand, int kRows>
class TileFetch {
 public:
    // Threads along the fast direction read neighbours.
    static constexpr bool kDepthFast = Operand::kDepthFast;
    static constexpr int kEach = kRows * kDepthStep / kProductThreads;

    __device__ TileFetch(const Operand& operand, int first_row, int thread)
        : operand_(operand),
          row_(kDepthFast ? thread / kDepthStep : thread % kRows),
          depth_(kDepthFast ? thread % kDepthStep : thread / kRows) {
        for (int e = 0; e < kEach; ++e)
            if (kDepthFast || e == 0) rows_[e] = operand.row(first_row + row_ + e * kRowStep);
    }
    __device__ void fetch(int l, int end, float (*tile)[kRows + kTilePad]) const {
        if constexpr (kDepthFast) {
            const auto depth = operand_.depth(l + depth_);
            for (int e = 0; e < kEach; ++e)
                tile[depth_][row_ + e * kRowStep] =
                    l + depth_ < end ? value(operand_.find(rows_[e], depth)) : 0.0f;
        } else {
            for (int e = 0; e < kEach; ++e) {
                const int d = depth_ + e * kDepthsApart;
                tile[d][row_] =
                    l + d < end ? value(operand_.find(rows_[0], operand_.depth(l + d))) : 0.0f;
            }
        }
    }

 private:
    static constexpr int kRowStep = kProductThreads / kDepthStep;
    static constexpr int kDepthsApart = kProductThreads / kRows;
    static __device__ float value(Found<float> found) { return found.there ? *found.at : 0.0f; }

    const Operand& operand_;
    int row_, depth_;
    typename Operand::Row rows_[kDepthFast ? kEach : 1];
};

// The tile of a block. Tiles are counted along the columns, so neighbours share rows. The grid has
// all tiles in x, because y allows only 65,535, and a batch can have more rows of tiles.
struct Place {
    int row, column;
    __device__ Place(int tile, int columns) : row(tile / columns), column(tile % columns) {}
};

// The rows (or columns) of a thread's sums in a tile: 4 from `first` on and 4 from `first` + 64 on.
__device__ __forceinline__ int tile_index(int first, int e) { return first + e % 4 + e / 4 * 64; }
template <int kCount>
__device__ __forceinline__ void read_fours(const float* row, int first, float (&to)[kCount]) {
#pragma unroll
    for (int e = 0; e < kCount; e += 4) {
        const float4 four = *reinterpret_cast<const float4*>(row + tile_index(first, e));
        to[e] = four.x, to[e + 1] = four.y, to[e + 2] = four.z, to[e + 3] = four.w;
    }
}

template <int kRows, int kColumns, class A, class B, class F>
__global__ void __launch_bounds__(kProductThreads, 2)
    product_kernel(A a, B b, int I, int J, int L, int part_depth, float* parts, F epilogue) {
    constexpr int kU = kRows / 16, kV = kColumns / 16;
    __shared__ __align__(16) float a_tile[kDepthStep][kRows + kTilePad];
    __shared__ __align__(16) float b_tile[kDepthStep][kColumns + kTilePad];
    const Place at(blockIdx.x, ceil_div(J, kColumns));
    const int thread = threadIdx.x, i0 = at.row * kRows, j0 = at.column * kColumns;
    const TileFetch<A, kRows> fetch_a(a, i0, thread);
    const TileFetch<B, kColumns> fetch_b(b, j0, thread);
    const int begin = blockIdx.z * part_depth, end = min(L, begin + part_depth);
    const int i = thread / 16 * 4, j = thread % 16 * 4;  // of the thread's first sum in the tile

    float sums[kU][kV] = {};
    for (int l = begin; l < end; l += kDepthStep) {
        fetch_a.fetch(l, end, a_tile);
        fetch_b.fetch(l, end, b_tile);
        __syncthreads();  // both pieces are there
#pragma unroll
        for (int d = 0; d < kDepthStep; ++d) {
            float x[kU], y[kV];
            read_fours(a_tile[d], i, x);
            read_fours(b_tile[d], j, y);
#pragma unroll
            for (int u = 0; u < kU; ++u)
#pragma unroll
                for (int v = 0; v < kV; ++v) sums[u][v] += x[u] * y[v];
        }
        __syncthreads();  // all have read; the next pieces may be stored
    }
#pragma unroll
    for (int u = 0; u < kU; ++u)
#pragma unroll
        for (int v = 0; v < kV; ++v) {
            const int row = i0 + tile_index(i, u), column = j0 + tile_index(j, v);
            if (row >= I || column >= J) continue;
            if (parts)
                parts[(size_t(blockIdx.z) * I + row) * J + column] = sums[u][v];
            else
                epilogue(row, column, J, sums[u][v]);
        }
}

// Adds the parts of each sum in order.
template <class T>
__global__ void epilogue_kernel(const float* parts, int count, size_t I, Divisor J,
                                Epilogue<T> epilogue) {
    for (size_t at = first_index(); at < I * J.by; at += grid_width()) {
        float sum = 0;
        for (int part = 0; part < count; ++part) sum += parts[part * I * J.by + at];
        const int i = int(at) / J;
        epilogue(i, int(at) - i * J.by, J.by, sum);
    }
}

// The parts into which l is cut; each part has its own blocks. The cut depends on shapes only, not
// on the GPU. A part has a depth of about 256 or more. All sums fit in 64 MB.
struct Parts {
    int count = 1, depth;   // depth of each part, a multiple of `step`
    float* sums = nullptr;  // [part][i][j]; null: l is not cut

    // together: as many blocks as a large GPU runs at once; more of them take a round more, full or
    // not. fused: the epilogue makes statistics of whole sums, which else take another pass.
    Parts(int64_t I, int64_t J, int64_t L, int64_t tiles, int together, int step, bool fused,
          DeviceMemory& memory) {
        ENSURE(I <= INT32_MAX && J <= INT32_MAX && L <= INT32_MAX, "a product of ", I, " x ", J,
               " x ", L);
        constexpr int kLeast = 256;  // also what it costs to write and add a part, as a depth
        int64_t most = std::min({(int64_t(16) << 20) / (I * J), L / kLeast, int64_t(together)});
        if (tiles >= (fused ? together / 2 : together)) most = 1;
        int64_t best = INT64_MAX;
        for (int64_t n = 1; n == 1 || n <= most; ++n) {
            const int64_t time = (L / n + kLeast) * int64_t(ceil_div(tiles * n, together));
            if (time < best) best = time, count = int(n);
        }
        depth = ceil_div(ceil_div(L, count), step) * step;
        count = L == 0 ? 1 : ceil_div(L, depth);  // L is 0 where no tap meets a pixel
        if (count > 1) sums = memory.scratch<float>(kSlotProduct, size_t(count) * I * J);
    }
    // Adds the parts. Returns true if there was nothing to add: each tile had complete sums.
    template <class T>
    bool add(int64_t I, int64_t J, const Epilogue<T>& epilogue, cudaStream_t stream) const {
        if (!sums) return true;
        ENSURE(I * J <= INT32_MAX, "a product of ", I, " x ", J, " numbers in parts");
        epilogue_kernel<T>
            <<<ceil_div(I * J, 256), 256, 0, stream>>>(sums, count, size_t(I), int(J), epilogue);
        CUDA_LAUNCHED();
        return false;
    }
};

template <class A, class B, class F>
void multiply(const A& a, const B& b, int64_t I, int64_t J, int64_t L, const F& epilogue,
              DeviceMemory& memory) {
    if (I == 0 || J == 0) return;
    const auto launch = [&](auto rows, auto columns) {
        constexpr int kRows = decltype(rows)::value, kColumns = decltype(columns)::value;
        const int64_t tiles = int64_t(ceil_div(I, kRows)) * ceil_div(J, kColumns);
        const Parts parts(I, J, L, tiles, 512, kDepthStep, false, memory);
        product_kernel<kRows, kColumns, A, B, F>
            <<<dim3(tiles, 1, parts.count), kProductThreads, 0, memory.stream>>>(
                a, b, int(I), int(J), int(L), parts.depth, parts.sums, epilogue);
        CUDA_LAUNCHED();
        parts.add(I, J, epilogue, memory.stream);
    };
    constexpr std::integral_constant<int, kTile> kWhole;
    constexpr std::integral_constant<int, kTile / 2> kHalf;
    if (I <= kHalf) return J <= kHalf ? launch(kHalf, kHalf) : launch(kHalf, kWhole);
    return J <= kHalf ? launch(kWhole, kHalf) : launch(kWhole, kWhole);
}

}  // namespace convoy::CONVOY_DEVICE
