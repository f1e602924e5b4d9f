// micro.h — the innermost loops, compiled once for each width of vector registers.
//
// vectors.h, micro_body.h and the other *_body.h are the source; micro_base.cpp compiles them for
// the floor of the build (AVX2, NEON, …), micro_avx512.cpp for AVX-512; micro_avx512_bf16.cpp adds
// products of bf16 by the processor's own instructions, and passes that round by them. pick_micro()
// chooses at run time.
#pragma once

#include <cstddef>
#include <utility>

#include "kernels/cpu/tiles.h"

namespace convoy {

// Where a tile of sums is stored, and what is applied to it before.
struct TileOut {
    float* const* rows;                  // of each row, the element in the tile's first column
    int cols;                            // columns that exist, ≤ nr
    bool accumulate = false;             // add what is there
    bool relu = false;                   // then max(0, ·)
    const float* bias = nullptr;         // added: `cols` floats
    std::optional<ptrdiff_t> mask = {};  // result is 0 where row[*mask + column] <= 0
    // What is needed next is brought to L2: for each 16 of depth so many cache lines from here, and
    // then from `upcoming_step` floats on.
    const float* upcoming = nullptr;
    int upcoming_lines = 0;
    ptrdiff_t upcoming_step = 0;

    bool plain() const { return !relu && !bias && !mask; }
};

// A block of pixels of an NHWC image, 6x6, 4x4 or 2x2; those outside of [row_begin, row_end) ×
// [col_begin, col_end) do not exist: they are read as 0 and not written.
template <class T>
struct WinogradBlock {
    const T* data;          // of pixel (0, 0), which may lie outside of the image
    ptrdiff_t line, pixel;  // numbers from one row, or column, to the next
    int channels;
    int row_begin, row_end, col_begin, col_end;
};
// Where the 36 transformed numbers of each channel go: number xi of channel c at
// data[xi·xi_stride + (c/piece)·piece_stride + c%piece].
struct WinogradPieces {
    float* data;
    ptrdiff_t xi_stride;
    int piece;
    ptrdiff_t piece_stride;
};

// F(out × out, size × size), out + size − 1 = 6: blocks of `out` × `out` outputs. Images of T; what
// is transformed, and the filters, are floats.
template <class T>
struct WinogradMethod {
    int size;
    void (*input)(const WinogradBlock<T>& in, const WinogradPieces& to);     // 6 × 6 → 36
    void (*gradient)(const WinogradBlock<T>& in, const WinogradPieces& to);  // out × out → 36
    // size × size → 36, for `columns` (a multiple of width) side by side: tap t at
    // g[t·tap_stride + j], number xi to u[xi·xi_stride + j].
    void (*filter)(const float* g, ptrdiff_t tap_stride, int columns, float* u,
                   ptrdiff_t xi_stride);
    // 36 → out × out, then bias, relu and mask of `epilogue` (its rows and cols are not used). m
    // may be read up to the next multiple of width.
    void (*output)(const float* m, ptrdiff_t xi_stride, const WinogradBlock<T>& to,
                   const TileOut& epilogue);
    // dw += 36 → size × size, dw size² × channels; sums may be read up to the next multiple of
    // width.
    void (*filter_grad)(const float* sums, ptrdiff_t xi_stride, int channels, float* dw);
};

// A pooling window around pixel (0, 0) = x; what lies in the image is [row_begin, row_end) ×
// [col_begin, col_end). Places in it are counted r·size_w + s.
struct PoolWindow {
    ptrdiff_t line, pixel;  // numbers from one row, or column, to the next
    int row_begin, row_end, col_begin, col_end, size_w;
};
// The outputs whose windows contain a pixel: rows and columns of dy and argmax. In the window of
// (p, q) it has the place  place(p, q) = place − p·place_row − q·place_col.
struct PoolGrad {
    ptrdiff_t line, pixel;
    int row_begin, row_end, col_begin, col_end;
    int place, place_row, place_col;
};

// Pixels of a depthwise convolution that are alike: i < pixels of y (or dx) at y[i·y_step + c],
// each under a window whose taps see x[i·x_step + tap.x + c] and multiply it by w[tap.w + c].
struct DepthwiseTap {
    ptrdiff_t x, w;
};
template <class T>
struct DepthwiseRun {
    const T* x;
    ptrdiff_t x_step, y_step;
    const DepthwiseTap* taps;
    int tap_count, channels, pixels;
};

template <class T>
struct Passes {
    // Mean and sum of squares around it of each channel, over rows × C numbers.
    void (*statistics)(const T* x, int64_t rows, int C, double* mean, double* square);
    // y = act((x − mean)·scale + beta + residual); residual may be null.
    void (*normalise)(const T* x, const T* residual, bool relu, T* y, int64_t rows, int C,
                      const float* mean, const float* scale, const float* beta);
    // With dz = dy where y > 0, else 0; or dy, if y is null:
    //   Σ dz  and  Σ dz·(x − mean)·rstd
    void (*gradient_sums)(const T* x, const T* y, const T* dy, int64_t rows, int C,
                          const float* mean, const float* rstd, double* dz, double* dzx);
    //   dx = scale·(dz − mean_dz − (x − mean)·slope)  and  dresidual = dz, if it is not null
    void (*gradient_rows)(const T* x, const T* y, const T* dy, T* dx, T* dresidual, int64_t rows,
                          int C, const float* mean, const float* scale, const float* mean_dz,
                          const float* slope);
    void (*add)(T* x, const T* y, size_t count);  // x += y
    // Row by row: to = from or to += from, the first `channels` of each.
    void (*copy_rows)(T* to, ptrdiff_t to_step, const T* from, ptrdiff_t from_step, int64_t rows,
                      int channels, bool add);
    // Of one output pixel, and of one pixel of dx, which is 0 where mask <= 0; mask may be null.
    void (*max_pool)(const T* x, const PoolWindow& window, int channels, T* y,
                     unsigned char* argmax);
    void (*max_pool_grad)(const T* dy, const unsigned char* argmax, const PoolGrad& window,
                          int channels, const T* mask, T* dx);
    //   y = act(bias + Σ x·w), 0 where mask <= 0, which lies as y does; bias and mask may be null
    //   dw += x·dy of all pixels
    void (*depthwise)(const DepthwiseRun<T>& run, const float* w, const float* bias, bool relu,
                      const T* mask, T* y);
    void (*depthwise_grad_w)(const DepthwiseRun<T>& run, const T* dy, float* dw);
};

// tile = Σ_k a(i,k)·b(k,j), j < nr; b(k,j) at b[k·nr + j], in by_depth at b[k·step + j].
//   by_row     a(i,k) at a[i·kRowStride + k]
//   by_piece   a(i,k) at a[(k/16)·rows·16 + i·16 + k%16]: rows in pieces of 16
//   by_depth   a(i,k) at a[k·lane + i]: a transposed
using Tile = void (*)(int depth, const float* a, const float* b, const TileOut& out);
using TileByDepth = void (*)(int depth, const float* a, const float* b, ptrdiff_t step,
                             const TileOut& out);

struct Micro {
    const char* name;
    int width;      // floats in a vector register
    int mr;         // rows of the largest tile
    int nr;         // columns of a tile
    int lane;       // floats from one k to the next in a k-major panel of A, ≥ mr
    int lane_rows;  // divides lane: rows of a tile when A's channels come in whole lanes

    // A tile for each number of rows: tile_by_row[rows] and so on, 0 < rows ≤ mr.
    const Tile *tile_by_row, *tile_by_piece;
    const TileByDepth* tile_by_depth;

    // to[k·to_step + j] = from[j·step + k], k < depth, j < columns: panels of a or b from rows of
    // depth. Up to the next multiple of width, to[k·to_step + j] is written as well.
    void (*transpose)(const float* from, ptrdiff_t step, int depth, int columns, float* to,
                      ptrdiff_t to_step);

    // Loops that are bound by memory.
    Passes<float> on_floats;
    Passes<Bf16> on_bf16;
    const auto& passes(const float*) const { return on_floats; }
    const auto& passes(const Bf16*) const { return on_bf16; }

    // The transforms of winograd.h.
    WinogradMethod<float> winograd3, winograd5;
    WinogradMethod<Bf16> winograd3_bf16, winograd5_bf16;

    // rounds·kChains·width multiply-adds in registers alone: the limit of the processor.
    float (*multiply_add_chains)(int rounds);

    // Products of bf16.
    TileUnit tiles;
};

constexpr int kChains = 12;
constexpr int kPiece = 16;        // floats of a row that lie together in a by_piece panel
constexpr int kDepthBlock = 256;  // most depth of a tile: a panel of b, 32 columns, is then 32 KB
// From one row of a by_row panel to the next: not a multiple of 4 KB / mr, so that the rows fall
// into different sets of the L1 cache.
constexpr int kRowStride = kDepthBlock + kPiece;

const Micro& micro_base();
const Micro& micro_avx512();       // only on x86-64, only to be called where the processor has it
const Micro& micro_amx();          // only on x86-64, only to be called where may_use_amx()
const Micro& micro_avx512_bf16();  // only on x86-64, only where the processor has AVX512_BF16
// bf16: whether its products are needed, for which the system must be asked.
const Micro& pick_micro(bool bf16 = false);

}  // namespace convoy
