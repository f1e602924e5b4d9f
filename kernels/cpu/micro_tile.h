// micro_tile.h — the register-blocked inner kernels. Each micro_*.cpp includes it and sets
//
//   kWidth  floats in a vector register     kVecs  vectors in a row of the tile
//   kRows   rows of the tile                kLane, kLaneRows  see Micro
//
// The tile of kRows × kVecs sums stays in registers; each step of k loads kVecs vectors of b and
// broadcasts kRows numbers of a, for kRows·kVecs fused multiply-adds:
//
//             b(k, 0…nr−1)   ┌──────┬──────┐        AVX-512: 14 × 2 vectors of 16 = 28 of 32
//                            └──────┴──────┘        registers; 16 loads, 28 FMAs (14 cycles at
//      a(0…13, k) ┌┐         ┌──────┬──────┐        two a cycle), so FMA is the limit.
//                 ││  ·  =   │  28 sums    │        AVX2: 6 × 2 vectors of 8 = 12 of 16 registers.
//                 └┘         └──────┴──────┘        128 bits: 8 × 3 vectors of 4 = 24 of 32.
#include "kernels/cpu/vectors.h"

namespace convoy {
namespace {

// Stores that need more than a copy, from a buffer. Not inlined: shared by tiles of all heights.
template <class T>
[[gnu::noinline]] void finish_tile(const float* sums, ptrdiff_t step, int height,
                                   const TileOutOf<T>& out) {
    for (int i = 0; i < height; ++i, sums += step)
        over_vectors(out.cols, [&](int j, auto n) {
            put(out.rows[i] + j, finished(load(sums + j), out.rows[i], j, n, out), n);
        });
}

// Every loop over acc has constant bounds and is unrolled, so that acc stays in registers.
template <int M>
inline void write_tile(const Vec (&acc)[M][kVecs], const TileOut& out) {
    constexpr int kCols = kVecs * kWidth;
    const bool direct = out.cols == kCols && out.plain();
    float sums[M * kCols];
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
        float* to = direct ? out.rows[i] : sums + i * kCols;
        const bool add = direct && out.accumulate;
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v)
            store(to + v * kWidth, add ? acc[i][v] + load(to + v * kWidth) : acc[i][v]);
    }
    if (!direct) finish_tile(sums, kCols, M, out);
}

// What a step adds: sum += left·row.
struct FloatProduct {
    static constexpr int kPerWord = 1;  // multiply-adds per lane
    static void add(Vec& sum, float left, Vec row) { sum += left * row; }
};

template <class Product, int M, int Stride>
inline void multiply_step(Vec (&acc)[M][kVecs], const float* a, const float* b) {
    Vec row[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) row[v] = load(b + v * kWidth);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
        const float left = a[i * Stride];
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) Product::add(acc[i][v], left, row[v]);
    }
}

// Prefetches the tile's part of the result, last used a block of depth ago, into L1.
template <int M>
inline void prefetch_result(const TileOut& out) {
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < kVecs * kWidth; v += 16) __builtin_prefetch(out.rows[i] + v, 1);
}

// a(i,k) is at a + i·Stride + k·Step, the next kChunk numbers of each row `Next` floats further;
// row k of b is at b + k·step.
template <class Product, int M, int Stride, int Step, int Next>
[[gnu::always_inline]] inline void multiply_tile(int depth, const float* a, const float* b,
                                                 ptrdiff_t step, const TileOut& out) {
    const float* upcoming = out.upcoming;
    Vec acc[M][kVecs] = {};
    prefetch_result<M>(out);
    for (; depth >= kChunk; depth -= kChunk, a += Next) {
        // Prefetches the next chunk of each row from L2: the runs are too short for the hardware.
#pragma GCC unroll 16
        for (int i = 0; i < M && Step == 1; ++i) __builtin_prefetch(a + Next + i * Stride);
        for (int i = 0; i < out.upcoming_lines; ++i) __builtin_prefetch(upcoming + i * 16, 0, 2);
        upcoming += out.upcoming_step;
#pragma GCC unroll 4
        for (int k = 0; k < kChunk; ++k, b += step)
            multiply_step<Product, M, Stride>(acc, a + k * Step, b);
    }
    for (int k = 0; k < depth; ++k, b += step)
        multiply_step<Product, M, Stride>(acc, a + k * Step, b);
    write_tile<M>(acc, out);
}

template <class Product, int M>
void tile_by_row(int depth, const float* a, const float* b, const TileOut& out) {
    multiply_tile<Product, M, kRowStride, 1, kChunk>(depth, a, b, kVecs * kWidth, out);
}
template <class Product, int M>
void tile_by_chunk(int depth, const float* a, const float* b, const TileOut& out) {
    multiply_tile<Product, M, kChunk, 1, M * kChunk>(depth, a, b, kVecs * kWidth, out);
}
template <class Product, int M>
void tile_by_depth(int depth, const float* a, const float* b, ptrdiff_t step, const TileOut& out) {
    multiply_tile<Product, M, 1, kLane, kLane * kChunk>(depth, a, b, step, out);
}

// One instance for each number of rows, so that the last rows of a matrix are not padded.
struct Tiles {
    Tile by_row[kRows + 1] = {}, by_chunk[kRows + 1] = {};
    TileByDepth by_depth[kRows + 1] = {};
};
template <class Product, int... M>
constexpr Tiles all_tiles(std::integer_sequence<int, M...>) {
    return {{nullptr, tile_by_row<Product, M + 1>...},
            {nullptr, tile_by_chunk<Product, M + 1>...},
            {nullptr, tile_by_depth<Product, M + 1>...}};
}
template <class Product>
constexpr Tiles kTiles = all_tiles<Product>(std::make_integer_sequence<int, kRows>());

// Lane l of the result is lane L[l] of the concatenation of both vectors.
template <int... L>
inline Vec lanes(Vec a, Vec b) {
#ifdef __clang__
    return __builtin_shufflevector(a, b, L...);
#else
    return __builtin_shuffle(a, b, Ints{L...});
#endif
}

template <int D, int... L>
inline void exchange_corners(Vec& a, Vec& b, std::integer_sequence<int, L...>) {
    const Vec low = lanes<(L & D ? kWidth + L - D : L)...>(a, b);
    b = lanes<(L & D ? kWidth + L : L + D)...>(a, b);
    a = low;
}

// Step D of transposing a square of vectors: in each 2D × 2D block the off-diagonal D × D corners
// are exchanged. Eklundh, "A Fast Computer Method for Matrix Transposing" (1972).
template <int D>
inline void transpose_square(Vec (&v)[kWidth]) {
    if constexpr (D < kWidth) {
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; ++i)
            if ((i & D) == 0)
                exchange_corners<D>(v[i], v[i + D], std::make_integer_sequence<int, kWidth>());
        transpose_square<2 * D>(v);
    }
}

[[maybe_unused]] void transpose(const float* from, ptrdiff_t step, int depth, int columns,
                                float* to, ptrdiff_t to_step) {
    int k = 0;
    for (; k + kWidth <= depth; k += kWidth)
        for (int j = 0; j < columns; j += kWidth) {
            const float* block = from + j * step + k;
            float* out = to + k * to_step + j;
            const int last = columns - 1 - j;  // read again for columns that do not exist
            Vec v[kWidth];
#pragma GCC unroll 16
            for (int c = 0; c < kWidth; ++c) {
                const float* column = block + (c < last ? c : last) * step;
                v[c] = load(column);
                __builtin_prefetch(column + 128);  // rows lie far apart
            }
            transpose_square<1>(v);
#pragma GCC unroll 16
            for (int i = 0; i < kWidth; ++i) store(out + i * to_step, v[i]);
        }
    for (; k < depth; ++k)
        for (int j = 0; j < columns; ++j) to[k * to_step + j] = from[j * step + k];
}

}  // namespace
}  // namespace convoy

#include "kernels/cpu/passes_body.h"

namespace convoy {
namespace {

// Twelve independent chains of multiply-adds hide the latency: 2 units × 4 cycles.
template <class Product>
double multiply_add_chains(int rounds, float* numbers) {
    Vec sums[kChains], all = {};
    const float left = numbers[0];
    const Vec row = load(numbers + kWidth);
    for (int i = 0; i < kChains; ++i) sums[i] = load(numbers + i * kWidth);
    for (int round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
        for (int i = 0; i < kChains; ++i) Product::add(sums[i], left, row);
    }
    for (int i = 0; i < kChains; ++i) all += sums[i];
    numbers[0] = all[0];
    return double(rounds) * kChains * kWidth * Product::kPerWord;
}

[[maybe_unused]] constexpr Micro make_micro(const char* name) {
    return {name,
            kWidth,
            kRows,
            kWidth * kVecs,
            kLane,
            kLaneRows,
            kTiles<FloatProduct>.by_row,
            kTiles<FloatProduct>.by_chunk,
            kTiles<FloatProduct>.by_depth,
            finish_tile<Bf16>,
            transpose,
            kPasses<float>,
            kPasses<Bf16>,
            multiply_add_chains<FloatProduct>};
}
}  // namespace
}  // namespace convoy
