// conv2d.cu — convolutions as products.   Twin: kernels/cpu/conv2d.cpp
//
//   conv2d         y[npq,k]   = act(b[k] + Σ_rsc x[n, p·stride+r−pad, q·stride+s−pad, c]·w[k,rsc])
//                  and the statistics of y for a batch norm after it             moments.cuh
//   conv2d_grad_x  dx[nhw,c]  = Σ_rsk dy[n, (h+pad−r)/stride, (w+pad−s)/stride, k]·w[k,r,s,c]
//                               over the r, s for which both divisions leave no rest; masked
//   conv2d_grad_w  dw[k,rsc] += Σ_npq dy[npq,k]·x[n, p·stride+r−pad, q·stride+s−pad, c]
//                  db[k]     += Σ_npq dy[npq,k]                              column_sums.cu
//
// The matrix of patches is never written: an operand of gemm.cuh finds its numbers in x or dy while
// the tile is fetched ("implicit GEMM"). The channel is the fast index of the depth.
//
// With a stride, grad_x is stride_h·stride_w products. Pixels (h, w) with equal remainders of
// (h+pad)/stride and (w+pad)/stride use the same taps (TapsOfPixel). So they form a gradient of
// stride 1 with a smaller filter, and no zeros are multiplied.
//
// For tensor cores, numbers are copied in chunks of 16 bytes. If the channels do not fill chunks (a
// first layer has 3), they are padded with zeros: x, dy and w are copied, and dw is computed in a
// padded matrix and then added.
// Products on tensor cores compute statistics from their tiles. A group of images may end anywhere
// in a tile. If the depth is cut into parts (few tiles, so a small y), no tile has complete sums,
// and moments.cu reads y again. Only the shapes decide this. In fp32 moments.cu always reads y.
// depthwise.cu has depthwise convolutions.
// Mapping, bytes and order of the sums: gemm.cuh, plain and in fp32; tensor_gemm.cuh, on tensor
// cores, of floats (rounded to tf32) or bf16; tma_gemm.cuh, of bf16 on Hopper.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/tensor_gemm.cuh"
#include "kernels/shapes.h"

namespace convoy::CONVOY_DEVICE {

namespace {

// A row and a column of an image in one word, each in 16 bits, so that pixel and tap are added at
// once. A column below 0 borrows from the row, but such a pixel is outside in any case.
constexpr int kMostPixels = 32767;  // of an image with its padding, in either direction
__host__ __device__ constexpr uint32_t both(int h, int w) {
    return uint32_t(h) * 65536u + uint32_t(w);
}
// kNoPixel plus any tap is outside, and so is any pixel plus kNoTap.
constexpr uint32_t kNoPixel = 0x80000000u, kNoTap = 0x00008000u;
// Whether neither half of `at`, nor of last − at, is negative; `last` is the last pixel.
__device__ __forceinline__ bool is_inside(uint32_t at, uint32_t last) {
    return ((at | (last - at)) & 0x80008000u) == 0;
}

// Patches of images: a row for each place of the grid, depth r,s,c.
template <class T>
struct Patches : PixelGrid {
    using Element = T;
    static constexpr bool kDepthFast = true, kTable = true;
    const T* x;
    uint32_t last;
    int64_t image;  // numbers of an image, and of a line of it
    int line, rows, depths;

    Patches(Tensor t, int P, int Q, int R, int S)
        : PixelGrid{t.data, t.N, t.H, t.W, R, P, Q, S, t.C},
          x(elements<T>(t)),
          last(both(t.H - 1, t.W - 1)),
          image(int64_t(t.shape().row_elems())) {
        line = t.W * t.C, rows = t.N * P * Q, depths = R * S * t.C;
    }

    struct alignas(16) Row {  // the corner of a patch
        const T* from;
        uint64_t at;  // as long as `from`: both are one access
    };
    struct Depth {  // what a tap and a channel add
        int offset;
        uint32_t at;
        int c;
    };
    __device__ __forceinline__ Row row(int i) const {
        if (i >= rows) return {x, kNoPixel};
        const int pixels = i / Q, n = pixels / P;
        const int h = (pixels - n * P.by) * stride_h + first_h;
        const int w = (i - pixels * Q.by) * stride_w + first_w;
        return {x + (n * image + int64_t(h) * line + w * C.by), both(h, w)};
    }
    __device__ __forceinline__ Depth depth(int l) const {
        const int tap = l / C, c = l - tap * C.by, r = tap / S, s = tap - r * S.by;
        const int h = r * tap_h, w = s * tap_w;
        return {h * line + w * C.by + c, l < depths ? both(h, w) : kNoTap, c};
    }
    // By `step`, which mostly stays in the same tap.
    __device__ __forceinline__ void advance(Depth& depth, int l, int step) const {
        depth.c += step, depth.offset += step;
        if (depth.c >= C.by) depth = this->depth(l);
    }
    __device__ __forceinline__ Found<T> find(const Row& row, const Depth& depth) const {
        return {row.from + depth.offset, is_inside(uint32_t(row.at) + depth.at, last)};
    }
};

// The same matrix transposed, for grad_w: a row for each r,s,c, depth the output pixels.
template <class T>
struct PatchesOfTap {
    using Element = T;
    static constexpr bool kDepthFast = false, kTable = true;
    Patches<T> patches;

    using Row = typename Patches<T>::Depth;
    using Depth = typename Patches<T>::Row;
    __device__ __forceinline__ Row row(int i) const { return patches.depth(i); }
    __device__ __forceinline__ Depth depth(int l) const { return patches.row(l); }
    __device__ __forceinline__ Found<T> find(const Row& tap, const Depth& corner) const {
        return patches.find(corner, tap);
    }
    operator PixelGrid() const { return patches; }
};

// The patches of x that make y.
template <class T>
Patches<T> patches_of(Tensor x, Window window, Tensor y) {
    Patches<T> patches(x, y.H, y.W, window.size_h, window.size_w);
    patches.stride_h = window.stride_h, patches.stride_w = window.stride_w;
    patches.first_h = -window.pad_h, patches.first_w = -window.pad_w;
    patches.tap_h = window.dilation_h, patches.tap_w = window.dilation_w;
    return patches;
}

// The patches of dy that make P × Q pixels of dx. From their first pixel on, the taps are those of
// w backwards.
template <class T>
Patches<T> patches_of(Tensor dy, int P, int Q, const TapsOfPixel& h, const TapsOfPixel& w) {
    Patches<T> patches(dy, P, Q, h.count, w.count);
    patches.first_h = h.read_for(h.count - 1), patches.tap_h = h.shift;
    patches.first_w = w.read_for(w.count - 1), patches.tap_w = w.shift;
    return patches;
}

// Where the rows of a padded or reordered copy come from. Row i of the copy is of the tap (r, s)
// number i / K, and of the filter i % K.
struct Source {
    Divisor K, S;               // rows of a tap in the copy, and taps of a line there
    int filters, C, taps;       // of the original: filter after filter, tap after tap
    int first, step_r, step_s;  // its tap first + r·step_r + s·step_s
};
// Channels and filters that the original lacks are 0. A thread writes kWide channels.
template <class T, int kWide>
__global__ void reorder_kernel(const T* __restrict__ from, Source source, T* __restrict__ to,
                               Divisor packs, size_t count) {
    for (size_t at = first_index(); at < count; at += grid_width()) {
        const int i = int(at);
        const int row = i / packs, c = (i - row * packs.by) * kWide;
        const int tap = row / source.K, k = row - tap * source.K.by;
        const int r = tap / source.S, s = tap - r * source.S.by;
        const int64_t before =
            int64_t(k) * source.taps + source.first + r * source.step_r + s * source.step_s;
        float values[kWide] = {};
#pragma unroll
        for (int e = 0; e < kWide; ++e)
            if (k < source.filters && c + e < source.C)
                values[e] = load(from + before * source.C + c + e);
        store_pack(to + int64_t(i) * kWide, values);
    }
}
// The reordered rows of `from` in a scratch block, as a tensor of this shape.
Tensor reorder(Tensor from, const Source& source, Shape shape, Slot slot, DeviceMemory& memory) {
    const Tensor to(memory.scratch(slot, shape.elems() * bytes_of(from.type)), shape, from.type);
    with_pack({to}, [&]<class T>(T, auto wide) {
        const size_t count = to.elems() / wide();
        ENSURE(count <= INT32_MAX, "a copy ", shape.text());
        reorder_kernel<T, wide()><<<std::min(ceil_div(count, 256), 4096), 256, 0, memory.stream>>>(
            elements<T>(from), source, elements<T>(to), to.C / wide(), count);
        CUDA_LAUNCHED();
    });
    return to;
}

// Where copies are, while a product reads them.
constexpr Slot kCopyOfImages = kSlotResult, kCopyOfFilters = kSlotFactors;

// The weights of a depthwise convolution by tap, [r·S + s][c].
Tensor by_tap(Tensor w, DeviceMemory& memory) {
    const int taps = w.H * w.W;
    return reorder(w, {w.N, w.W, w.N, 1, taps, 0, w.W, 1}, {taps, 1, w.N, 1}, kCopyOfFilters,
                   memory);
}

// How many channels fill whole chunks of a copy.
int whole_chunks(int channels, Type type, Precision precision) {
    const int chunk = 16 / int(bytes_of(type));
    return precision == Precision::kFp32 ? channels : ceil_div(channels, chunk) * chunk;
}
// x, if its channels fill whole chunks, or else a padded copy.
Tensor in_chunks(Tensor x, Precision precision, Slot slot, DeviceMemory& memory) {
    if (precision == Precision::kFp32 || has_packs(x) || x.elems() == 0) return x;
    const int rows = int(x.elems() / x.C);
    return reorder(x, {rows, 1, rows, x.C, 1, 0, 0, 0},
                   {x.N, x.H, x.W, whole_chunks(x.C, x.type, precision)}, slot, memory);
}

// In the precision asked for. Returns whether tiles had whole sums and gave their statistics, which
// products in fp32 leave to moments.cu.
template <class A, class B, class F>
bool product(Precision precision, int tma, const A& a, const B& b, int I, int J, int L,
             const F& epilogue, DeviceMemory& memory) {
    constexpr bool kHalved = sizeof(typename A::Element) == 2;
    ENSURE(kHalved == (precision == Precision::kBf16), "tensors of ", kHalved ? "bf16" : "fp32",
           " in products of ", name_of(precision));
    if constexpr (!kHalved)
        if (precision == Precision::kFp32) {
            multiply(a, b, I, J, L, Epilogue<typename F::Out>(epilogue), memory);
            return false;
        }
    return multiply_tensor(a, b, I, J, L, epilogue, tma, memory);
}

// Calls f with a value of the type in which the output is stored: float if T is float, otherwise
// `type`. Products of bf16 may be stored as floats (logits).
template <class T, class F>
void with_out(Type type, F&& f) {
    if constexpr (sizeof(T) == sizeof(float))
        f(T());
    else
        with_type(type, f);
}
// Throws unless both hold numbers of one type.
void check_types(Tensor x, Tensor other) {
    with_type(x.type, [&]<class T>(T) { (void)elements<T>(other); });
}

// Pixels and taps are words, and what a tap adds to an address is an int.
void check_pixels(Tensor x, Tensor y, Window window) {
    const int h = x.H + 2 * window.pad_h + window.extra_h + window.extent_h();
    const int w = x.W + 2 * window.pad_w + window.extra_w + window.extent_w();
    const int64_t columns = std::max({x.W, y.W, window.extent_w()}), C = std::max(x.C, y.C) + 8;
    ENSURE(std::max(h, w) <= kMostPixels && columns * C * (window.extent_h() + 1) <= INT32_MAX,
           "x is ", x.shape().text(), ", y is ", y.shape().text(),
           "; with padding and window the limit is ", kMostPixels, " rows and columns");
}

}  // namespace

void CudaBackend::conv2d(Tensor x, Tensor w, const float* b, Window window, bool relu, Tensor y,
                         const Moments* of_y) {
    check_conv2d(x, w, window, y);
    check_pixels(x, y, window);
    check_types(x, w);
    if (of_y) check_groups(y, of_y->groups);
    if (y.elems() == 0) return;
    if (is_depthwise(x, w)) {
        depthwise(x, by_tap(w, memory_), b, window, relu, y);
        if (of_y) moments(y, *of_y);
        return;
    }
    x = in_chunks(x, precision_, kCopyOfImages, memory_);
    w = in_chunks(w, precision_, kCopyOfFilters, memory_);
    Strips strips;
    if (of_y && precision_ != Precision::kFp32)
        strips = make_strips(y, of_y->groups, kTensorRows, kSlotSums);
    bool whole = false;
    with_type(x.type, [&]<class T>(T) {
        const auto patches = patches_of<T>(x, window, y);
        const Matrix<true, T> filters{elements<T>(w), w.N, patches.depths};
        with_out<T>(y.type, [&]<class Out>(Out) {
            const EpilogueWithMoments<Out> epilogue{{elements<Out>(y), b, relu}, strips};
            whole = product(precision_, tma_, patches, filters, patches.rows, w.N, patches.depths,
                            epilogue, memory_);
        });
    });
    if (of_y && whole)
        finish_moments(y, strips, *of_y);
    else if (of_y)
        moments(y, *of_y);
}

void CudaBackend::conv2d_grad_x(Tensor dy, Tensor w, Window window, Tensor mask, Tensor dx,
                                bool add) {
    check_conv2d(dx, w, window, dy);
    check_pixels(dx, dy, window);
    check_types(dy, w);
    check_grad_x(dx, w, mask, add);
    if (dx.elems() == 0) return;
    if (is_depthwise(dx, w)) return depthwise_grad_x(dy, by_tap(w, memory_), window, mask, dx);
    dy = in_chunks(dy, precision_, kCopyOfImages, memory_);
    const int C = whole_chunks(dx.C, w.type, precision_);
    const bool single = w.H * w.W == 1 && w.N == dy.C && w.C == C && has_packs(w);
    for (int first_h = 0; first_h < std::min(window.stride_h, dx.H); ++first_h)
        for (int first_w = 0; first_w < std::min(window.stride_w, dx.W); ++first_w) {
            const TapsOfPixel h(first_h, w.H, window.stride_h, window.pad_h, window.dilation_h);
            const TapsOfPixel v(first_w, w.W, window.stride_w, window.pad_w, window.dilation_w);
            const int rows = ceil_div(dx.H - first_h, window.stride_h);
            const int columns = ceil_div(dx.W - first_w, window.stride_w);
            const int taps = h.count * v.count;
            if (taps == 0 && add && !mask) continue;  // nothing to add
            Tensor filters = w;
            const int last = h.tap(h.count - 1) * w.W + v.tap(v.count - 1);
            if (taps > 0 && !single)
                filters =
                    reorder(w, {dy.C, v.count, w.N, w.C, w.H * w.W, last, -h.step * w.W, -v.step},
                            {taps, 1, dy.C, C}, kCopyOfFilters, memory_);
            with_type(dy.type, [&]<class T>(T) {
                const auto patches = patches_of<T>(dy, rows, columns, h, v);
                const Matrix<false, T> matrix{elements<T>(filters), C, patches.depths};
                with_out<T>(dx.type, [&]<class Out>(Out) {
                    Epilogue<Out> epilogue{elements<Out>(dx), nullptr, false, elements<Out>(mask),
                                           add};
                    if (window.stride_h * window.stride_w > 1)
                        epilogue.rows = {false,   dx.H,    dx.W, window.stride_h, window.stride_w,
                                         first_h, first_w, rows, columns};
                    product(precision_, tma_, patches, matrix, patches.rows, dx.C, patches.depths,
                            epilogue, memory_);
                });
            });
        }
}

void CudaBackend::conv2d_grad_w(Tensor x, Tensor dy, Window window, Tensor dw, float* db) {
    check_conv2d(x, dw, window, dy);
    check_pixels(x, dy, window);
    check_types(x, dy);
    if (dy.elems() == 0) return;
    if (db) add_column_sums(dy, db);
    if (is_depthwise(x, dw)) return depthwise_grad_w(x, dy, window, dw);
    x = in_chunks(x, precision_, kCopyOfImages, memory_);
    dy = in_chunks(dy, precision_, kCopyOfFilters, memory_);
    const bool padded = x.C != dw.C;
    const Shape shape{dw.N, dw.H, dw.W, x.C};
    const Tensor sums =
        padded ? Tensor(memory_.scratch<float>(kSlotSums, shape.elems()), shape) : dw;
    with_type(x.type, [&]<class T>(T) {
        const PatchesOfTap<T> patches{patches_of<T>(x, window, dy)};
        const int J = patches.patches.depths, L = patches.patches.rows;
        const Matrix<false, T> outputs{elements<T>(dy), dy.C, L};
        const Epilogue<float> epilogue{sums.floats(), nullptr, false, nullptr, !padded};
        product(precision_, tma_, outputs, patches, dw.N, J, L, epilogue, memory_);
    });
    if (padded) copy_channels(dw, sums, 0, true);
}

}  // namespace convoy::CONVOY_DEVICE
