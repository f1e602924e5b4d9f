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
// the tile is fetched ("implicit GEMM"). The channel is the fast index of the depth, so 16 threads
// read 16 neighbours. With a stride, grad_x multiplies zeros for the taps that do not meet a pixel.
// The statistics are taken from the tiles before they are stored, wherever in a tile a group of
// images ends. Where the depth is cut into parts (few tiles, so a small y) no tile has whole sums:
// then y is read again, moments.cu. Either by shapes alone.
// Depthwise ones are in depthwise.cu.
// Mapping, bytes and order of the sums: gemm.cuh, plain and in fp32; tensor_gemm.cuh, on tensor
// cores, of floats (rounded to tf32) or bf16.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/tensor_gemm.cuh"
#include "kernels/shapes.h"

namespace convoy::CONVOY_DEVICE {

namespace {

// An output pixel, as the top left corner of its window in the input.
struct Corner {
    int n, h, w;  // n < 0: beyond the last
};
// A filter tap and a channel of it.
struct Tap {
    int r, s, c;  // r < 0: beyond the last
};

__device__ __forceinline__ Tap tap_of(int i, int S, int C, int end) {
    if (i >= end) return {-1, 0, 0};
    return {i / C / S, i / C % S, i % C};
}
__device__ __forceinline__ Corner corner_of(int i, int P, int Q, const Window& window, int end) {
    if (i >= end) return {-1, 0, 0};
    const int q = i % Q, p = i / Q % P;
    return {i / Q / P, p * window.stride_h - window.pad_h, q * window.stride_w - window.pad_w};
}
template <class T>
__device__ __forceinline__ const T* pixel(const T* x, const Shape& xs, int n, int h, int w, int c) {
    if (h < 0 || w < 0 || h >= xs.H || w >= xs.W) return nullptr;
    return x + ((size_t(n) * xs.H + h) * xs.W + w) * xs.C + c;
}

// The patches of x: a row for each output pixel, depth r,s,c.
template <class T>
struct Patches {
    using Number = T;
    static constexpr bool kDepthFast = true;
    const T* x;
    Shape xs;
    Window window;
    int P, Q, rows, depths;

    using Row = Corner;
    using Depth = Tap;
    __device__ const T* any() const { return x; }
    __device__ Row row(int i) const { return corner_of(i, P, Q, window, rows); }
    __device__ Depth depth(int l) const { return tap_of(l, window.size_w, xs.C, depths); }
    __device__ const T* find(const Row& corner, const Depth& tap) const {
        if (corner.n < 0 || tap.r < 0) return nullptr;
        return pixel(x, xs, corner.n, corner.h + tap.r, corner.w + tap.s, tap.c);
    }
};

// The same matrix transposed, for grad_w: a row for each r,s,c, depth the output pixels.
template <class T>
struct PatchesOfTap {
    using Number = T;
    static constexpr bool kDepthFast = false;
    Patches<T> patches;

    using Row = Tap;
    using Depth = Corner;
    __device__ const T* any() const { return patches.x; }
    __device__ Row row(int i) const { return patches.depth(i); }
    __device__ Depth depth(int l) const { return patches.row(l); }
    __device__ const T* find(const Row& tap, const Depth& corner) const {
        return patches.find(corner, tap);
    }
};

// For grad_x: a row for each pixel of x, depth r,s,k; the outputs of which it was part.
template <class T>
struct Outputs {
    using Number = T;
    static constexpr bool kDepthFast = true;
    const T* dy;
    Shape ys;
    Window window;
    int H, W, rows, depths;

    using Row = Corner;  // h + pad, w + pad
    using Depth = Tap;
    __device__ const T* any() const { return dy; }
    __device__ Row row(int i) const {
        if (i >= rows) return {-1, 0, 0};
        return {i / W / H, i / W % H + window.pad_h, i % W + window.pad_w};
    }
    __device__ Depth depth(int l) const { return tap_of(l, window.size_w, ys.C, depths); }
    __device__ const T* find(const Row& at, const Depth& tap) const {
        const int h = at.h - tap.r, w = at.w - tap.s;
        if (at.n < 0 || tap.r < 0 || h < 0 || w < 0) return nullptr;
        if (h % window.stride_h != 0 || w % window.stride_w != 0) return nullptr;
        return pixel(dy, ys, at.n, h / window.stride_h, w / window.stride_w, tap.c);
    }
};

// For grad_x: a row for each channel c of w (K×R×S×C), depth r,s,k.
template <class T>
struct FiltersOfChannel {
    using Number = T;
    static constexpr bool kDepthFast = false;
    const T* w;
    int K, R, S, C;

    using Row = int;
    using Depth = Tap;
    __device__ const T* any() const { return w; }
    __device__ Row row(int c) const { return c; }
    __device__ Depth depth(int l) const { return tap_of(l, S, K, R * S * K); }
    __device__ const T* find(Row c, const Depth& tap) const {
        if (c >= C || tap.r < 0) return nullptr;
        return w + ((size_t(tap.c) * R + tap.r) * S + tap.s) * C + c;
    }
};

template <class T>
Patches<T> patches_of(Tensor x, Window window, Tensor y) {
    const int taps = window.size_h * window.size_w * x.C;
    return {numbers<T>(x), x.shape(), window, y.H, y.W, y.N * y.H * y.W, taps};
}

// Whether as many neighbouring channels as fill 16 bytes can be copied at once.
bool is_wide(Tensor x, int channels) {
    return channels * bytes_of(x.type) % 16 == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
}

// In the precision asked for; wide: of both operands. Returns whether tiles had whole sums.
template <class A, class B, class F = Epilogue>
bool product(Precision precision, bool wide, const A& a, const B& b, int I, int J, int L,
             const F& epilogue, DeviceMemory& memory, cudaStream_t stream) {
    constexpr bool kHalved = sizeof(typename A::Number) == 2;
    ENSURE(kHalved == (precision == Precision::kBf16), "a product of ", kHalved ? "bf16" : "floats",
           " in another precision");
    if constexpr (!kHalved)
        if (precision == Precision::kFp32) return multiply(a, b, I, J, L, epilogue, memory, stream);
    if (wide) return multiply_tensor<true, true>(a, b, I, J, L, epilogue, memory, stream);
    return multiply_tensor<false, false>(a, b, I, J, L, epilogue, memory, stream);
}

}  // namespace

void CudaBackend::conv2d(Tensor x, Tensor w, const float* b, Window window, bool relu, Tensor y,
                         const Moments* of_y) {
    check_conv2d(x, w, window, y);
    if (of_y) check_groups(y, of_y->groups);
    if (y.elems() == 0) return;
    if (is_depthwise(x, w)) {
        depthwise(x, w, b, window, relu, y);
        if (of_y) moments(y, *of_y);
        return;
    }
    EpilogueWithMoments epilogue{{y, b, relu}, {}};
    if (of_y)
        epilogue.strips = make_strips(
            y, of_y->groups, precision_ == Precision::kFp32 ? kTile : kTensorRows, kSlotSums);
    bool whole = false;
    with_type(x.type, [&](auto type) {
        using T = decltype(type);
        const auto patches = patches_of<T>(x, window, y);
        const Matrix<true, T> filters{numbers<T>(w), w.N, patches.depths, patches.depths};
        whole = product(precision_, is_wide(x, x.C) && is_wide(w, x.C), patches, filters,
                        patches.rows, w.N, patches.depths, epilogue, memory_, stream_);
    });
    if (of_y && whole)
        finish_moments(y, epilogue.strips, *of_y);
    else if (of_y)
        moments(y, *of_y);
}

void CudaBackend::conv2d_grad_x(Tensor dy, Tensor w, Window window, Tensor mask, Tensor dx) {
    check_conv2d(dx, w, window, dy);
    check_mask(mask, dx);
    if (is_depthwise(dx, w)) return depthwise_grad_x(dy, w, window, mask, dx);
    with_type(dy.type, [&](auto type) {
        using T = decltype(type);
        const int I = dx.N * dx.H * dx.W, J = dx.C, L = window.size_h * window.size_w * w.N;
        const Outputs<T> outputs{numbers<T>(dy), dy.shape(), window, dx.H, dx.W, I, L};
        const FiltersOfChannel<T> filters{numbers<T>(w), w.N, w.H, w.W, w.C};
        product(precision_, is_wide(dy, dy.C) && is_wide(w, w.C), outputs, filters, I, J, L,
                Epilogue{dx, nullptr, false, mask}, memory_, stream_);
    });
}

void CudaBackend::conv2d_grad_w(Tensor x, Tensor dy, Window window, Tensor dw, float* db) {
    check_conv2d(x, dw, window, dy);
    if (dy.elems() == 0) return;
    if (db) add_column_sums(dy, db);
    if (is_depthwise(x, dw)) return depthwise_grad_w(x, dy, window, dw);
    with_type(x.type, [&](auto type) {
        using T = decltype(type);
        const PatchesOfTap<T> patches{patches_of<T>(x, window, dy)};
        const int I = dy.C, J = patches.patches.depths, L = patches.patches.rows;
        const Matrix<false, T> outputs{numbers<T>(dy), I, L, I};
        const Epilogue epilogue{Tensor(dw.floats(), dw.shape()), nullptr, false, nullptr, true};
        const bool dy_wide = is_wide(dy, dy.C), x_wide = is_wide(x, x.C);
        if (precision_ != Precision::kFp32 && dy_wide && !x_wide)  // a first layer
            multiply_tensor<true, false>(outputs, patches, I, J, L, epilogue, memory_, stream_);
        else
            product(precision_, dy_wide && x_wide, outputs, patches, I, J, L, epilogue, memory_,
                    stream_);
    });
}

}  // namespace convoy::CONVOY_DEVICE
