// micro.h — the innermost loops, compiled once for each width of vector registers. vectors.h and
// *_body.h are the source. micro_base.cpp compiles them for the baseline of the build (AVX2, NEON,
// …), micro_avx512.cpp for AVX-512. micro_avx512_bf16.cpp adds products and rounding of bf16 in
// hardware. pick_micro() chooses at run time.
#pragma once

#include <cstddef>
#include <optional>

#include "kernels/backend.h"
#include "kernels/cpu/elements.h"

namespace convoy {

// Where a tile of sums is stored, and what is applied to it first.
template <class T>
struct TileOutOf {
    T* const* rows;                      // rows[i]: the element of row i in the tile's first column
    int cols;                            // columns that exist, ≤ nr
    bool accumulate = false;             // += instead of =
    bool relu = false;                   // then max(0, ·)
    const float* bias = nullptr;         // `cols` floats, added
    std::optional<ptrdiff_t> mask = {};  // result is 0 where row[*mask + column] <= 0
    // Prefetched into L2: `upcoming_lines` cache lines from `upcoming` on for the first 16 of the
    // depth, and as many from upcoming_step floats further for each 16 after that.
    const float* upcoming = nullptr;
    int upcoming_lines = 0;
    ptrdiff_t upcoming_step = 0;

    bool plain() const { return !relu && !bias && !mask; }
};
using TileOut = TileOutOf<float>;

// A block of pixels of an NHWC image: 6x6, 4x4 or 2x2. Pixels outside of [row_begin, row_end) ×
// [col_begin, col_end) are read as 0 and not written.
template <class T>
struct WinogradBlock {
    const T* data;          // address of pixel (0, 0), which may lie outside of the image
    ptrdiff_t line, pixel;  // numbers from one row, or column, to the next
    int channels;
    int row_begin, row_end, col_begin, col_end;
};
// Where the 36 transformed numbers of each channel are written: number xi of channel c at
// data[xi·xi_stride + (c/chunk)·chunk_stride + c%chunk].
struct WinogradChunks {
    float* data;
    ptrdiff_t xi_stride;
    int chunk;
    ptrdiff_t chunk_stride;
};

// F(out × out, size × size), out + size − 1 = 6. Only images have type T; other numbers are floats.
template <class T>
struct WinogradMethod {
    void (*input)(const WinogradBlock<T>& in, const WinogradChunks& to);     // 6 × 6 → 36
    void (*gradient)(const WinogradBlock<T>& in, const WinogradChunks& to);  // out × out → 36
    // size × size → 36, for each column j < columns (a multiple of width): reads tap t at
    // g[t·tap_stride + j], writes number xi to u[xi·xi_stride + j].
    void (*filter)(const float* g, ptrdiff_t tap_stride, int columns, float* u,
                   ptrdiff_t xi_stride);
    // 36 → out × out, then bias, relu and mask of `epilogue` (rows and cols are ignored). Channels
    // of m are read up to the next multiple of width.
    void (*output)(const float* m, ptrdiff_t xi_stride, const WinogradBlock<T>& to,
                   const TileOut& epilogue);
    // dw (size² × channels) += 36 → size × size. Reads channels up to a multiple of width.
    void (*filter_grad)(const float* sums, ptrdiff_t xi_stride, int channels, float* dw);
};

// A pooling window whose pixel (0, 0) is at x. Only pixels [row_begin, row_end) × [col_begin,
// col_end) lie in the image. argmax is the index r·size_w + s in the window.
struct PoolWindow {
    ptrdiff_t line, pixel;  // numbers from one row, or column, to the next
    int row_begin, row_end, col_begin, col_end, size_w;
};
// The outputs whose windows contain a given pixel: a range of rows and columns of dy and argmax. In
// the window of output (p, q) the pixel has the index place − p·place_row − q·place_col.
struct PoolGrad {
    ptrdiff_t line, pixel;
    int row_begin, row_end, col_begin, col_end;
    int place, place_row, place_col;
};

// A run of pixels of a depthwise convolution with the same taps: for i < pixels,
// y[i·y_step + c] (or dx) sums x[i·x_step + tap.x + c] · w[tap.w + c] over the taps.
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

// What batch norm does to a channel: z = (x − mean)·scale + beta, then act.
struct Norm {
    const float *mean, *scale, *beta;  // C numbers each
    Activation act;
    // For gradient_sums rstd follows mean; for gradient_rows mean_dz and slope follow scale.
};

template <class T>
struct Passes {
    // For each channel: the mean, and the sum of squared deviations from it, over rows × C numbers.
    void (*statistics)(const T* x, int64_t rows, int C, double* mean, double* square);
    // y = act(z + residual), z as in Norm; residual may be null.
    void (*normalise)(const T* x, const T* residual, const Norm& norm, T* y, int64_t rows, int C);
    // With dz = dy·act'(z), or dy·act'(y) and dresidual = dz if that is not null, computes
    //   Σ dz  and  Σ dz·(x − mean)·rstd
    void (*gradient_sums)(const T* x, const T* y, const T* dy, const Norm& norm, int64_t rows,
                          int C, T* dresidual, double* dz, double* dzx);
    //   dx = scale·(dz − mean_dz − (x − mean)·slope)  with  dz = dy·act'(z)
    void (*gradient_rows)(const T* x, const T* dy, const Norm& norm, int64_t rows, int C, T* dx);
    // As the ops of these names.
    void (*activate)(T* x, size_t count, Activation act);
    void (*activate_grad)(const T* of, T* dy, size_t count, Activation act);
    void (*add)(T* x, const T* y, size_t count);  // x += y
    // to = from, or to += from if add, for the first `channels` of each row.
    void (*copy_rows)(T* to, ptrdiff_t to_step, const T* from, ptrdiff_t from_step, int64_t rows,
                      int channels, bool add);
    // One output pixel; one pixel of dx, which is 0 where mask <= 0 (mask may be null).
    void (*max_pool)(const T* x, const PoolWindow& window, int channels, T* y,
                     unsigned char* argmax);
    void (*max_pool_grad)(const T* dy, const unsigned char* argmax, const PoolGrad& window,
                          int channels, const T* mask, T* dx);
    //   y = act(bias + Σ x·w), 0 where mask <= 0; mask has the layout of y; bias, mask may be null
    //   dw += x·dy over all pixels
    void (*depthwise)(const DepthwiseRun<T>& run, const float* w, const float* bias, bool relu,
                      const T* mask, T* y);
    void (*depthwise_grad_w)(const DepthwiseRun<T>& run, const T* dy, float* dw);
    WinogradMethod<T> winograd3, winograd5;  // the transforms of winograd.h
};

// tile = Σ_k a(i,k)·b(k,j), j < nr; b(k,j) is at b[k·nr + j], for by_depth at b[k·step + j].
//   by_row     a(i,k) is at a[i·kRowStride + k]
//   by_chunk   a(i,k) is at a[(k/16)·rows·16 + i·16 + k%16]: rows in chunks of 16
//   by_depth   a(i,k) is at a[k·lane + i]: transposed (on AMX by_chunk, with 16 rows)
using Tile = void (*)(int depth, const float* a, const float* b, const TileOut& out);
using TileByDepth = void (*)(int depth, const float* a, const float* b, ptrdiff_t step,
                             const TileOut& out);

struct Micro {
    const char* name;
    int width;      // floats in a vector register
    int mr;         // rows of the largest tile
    int nr;         // columns of a tile
    int lane;       // stride of k in a k-major panel of A, in floats, ≥ mr
    int lane_rows;  // divides lane: rows of a tile if a panel of A has `lane` rows

    // tile_by_row[rows] is the tile for that number of rows, 0 < rows ≤ mr; the others likewise.
    const Tile *tile_by_row, *tile_by_chunk;
    const TileByDepth* tile_by_depth;

    // Stores rows of sums, `step` apart, as bf16.
    void (*round_tile)(const float* sums, ptrdiff_t step, int rows, const TileOutOf<Bf16>& out);

    // to[k·to_step + j] = from[j·step + k], k < depth, j < columns up to a multiple of width.
    void (*transpose)(const float* from, ptrdiff_t step, int depth, int columns, float* to,
                      ptrdiff_t to_step);

    // Loops that are bound by memory.
    Passes<float> on_floats;
    Passes<Bf16> on_bf16;
    const auto& passes(const float*) const { return on_floats; }
    const auto& passes(const Bf16*) const { return on_bf16; }

    // Multiplies and adds in registers alone, to measure the peak. = the number of multiply-adds.
    // numbers: kPeakNumbers floats, or words of `pairs`; numbers[0] is overwritten.
    double (*multiply_add_chains)(int rounds, float* numbers);

    // Products of bf16 in hardware, or null. In its tiles each word of a and b is not a float but a
    // pair of bf16, the numbers 2k and 2k+1 of the depth: a(i,2k)·b(2k,j) + a(i,2k+1)·b(2k+1,j).
    const Micro* pairs = nullptr;
    // AMX: a tile must lie between begin() and end() on its thread; Winograd's method is slower.
    bool amx = false;
    void (*begin)() = nullptr;
    void (*end)() = nullptr;
};

// During its lifetime this thread may call tiles of `micro`.
class TileRegion {
 public:
    explicit TileRegion(const Micro& micro) : micro_(micro) {
        if (micro.begin) micro.begin();
    }
    ~TileRegion() {
        if (micro_.end) micro_.end();
    }
    TileRegion(const TileRegion&) = delete;

 private:
    const Micro& micro_;
};

constexpr int kChains = 12;
constexpr int kPeakNumbers = 512;
constexpr int kChunk = 16;        // contiguous floats of a row in a by_chunk panel
constexpr int kDepthBlock = 256;  // largest depth of a tile: a panel of b is then 32 KB
// Row stride of a by_row panel, whose rows must fall into different sets of the L1 cache.
constexpr int kRowStride = kDepthBlock + kChunk;

const Micro& micro_base();
// These three exist on x86-64 only, and may be called only if the processor has the instructions.
const Micro& micro_avx512();
const Micro& micro_amx();
const Micro& micro_avx512_bf16();
// bf16: its products are needed, so the system is asked for permission to use AMX.
const Micro& pick_micro(bool bf16 = false);

}  // namespace convoy
