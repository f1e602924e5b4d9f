// depthwise.cu — convolutions in which output channel c reads only input channel c.
// Twin: kernels/cpu/depthwise.cpp
//
//   forward  y[npq,c]  = act(b[c] + Σ_rs x[n, p·stride+r−pad, q·stride+s−pad, c]·w[c,rs])
//   grad_x   dx[nhw,c] = Σ dy[npq,c]·w[c,rs] over the windows that contain the pixel; masked
//   grad_w   dw[c,rs] += Σ_npq dy[npq,c]·x[…,c]
//
//   grid     a thread for 16 bytes of channels of a pixel, or for one channel if they do not fill
//            16 bytes. forward, grad_x: in loops as wide as the grid. grad_w: blocks of 256 threads
//            (moments.cuh) for each tap and part of the rows npq; the sums of the parts are added
//            by column_sums.cu.
//   w        by tap, so that 16 bytes of channels are neighbours (conv2d.cu reorders it)
//   bytes    4 a number, 2 where they are bf16: x read about once (windows overlap in the cache), y
//            written once; grad_w reads both once for each tap, mostly from the cache. Bound by
//            memory.
//   order    rows, then columns of the window; grad_w: each thread its rows in order, then
//            the threads, then the parts. The same bits on every run.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/moments.cuh"
#include "kernels/cuda/pixel.cuh"
#include "kernels/shapes.h"

namespace convoy::CONVOY_DEVICE {

namespace {

// sum[e] += x[e]·w[e]
template <class T, int kWide>
__device__ __forceinline__ void add_tap(float (&sum)[kWide], const T* x, const T* w) {
    float v[kWide], weights[kWide];
    load_pack(v, x);
    load_pack(weights, w);
#pragma unroll
    for (int e = 0; e < kWide; ++e) sum[e] += v[e] * weights[e];
}

template <class T, int kWide>
__global__ void forward_kernel(const T* __restrict__ x, Shape xs, const T* __restrict__ w,
                               const float* b, Window window, bool relu, T* __restrict__ y,
                               Pixels packs) {
    for (size_t i = first_index(); i < packs.count; i += grid_width()) {
        const Pixel at = packs[i];
        const int h = at.h * window.stride_h - window.pad_h;
        const int v = at.w * window.stride_w - window.pad_w;
        float sum[kWide];
#pragma unroll
        for (int e = 0; e < kWide; ++e) sum[e] = b ? b[at.c + e] : 0.0f;
        const int d_h = window.dilation_h, d_w = window.dilation_w;
        const int r1 = min(window.size_h, taps_before(xs.H - h, d_h));
        const int s0 = taps_before(max(0, -v), d_w);
        const int s1 = min(window.size_w, taps_before(xs.W - v, d_w));
        for (int r = taps_before(max(0, -h), d_h); r < r1; ++r)
            for (int s = s0; s < s1; ++s)
                add_tap(sum, x + index(xs, at.n, h + r * d_h, v + s * d_w, at.c),
                        w + (r * window.size_w + s) * xs.C + at.c);
        if (relu)
#pragma unroll
            for (int e = 0; e < kWide; ++e) sum[e] = sum[e] < 0 ? 0.0f : sum[e];  // a NaN stays
        store_pack(y + i * kWide, sum);
    }
}

// rows, cols: of any pixel.
template <class T, int kWide>
__global__ void grad_x_kernel(const T* __restrict__ dy, Shape ys, const T* __restrict__ w,
                              Window window, TapsOfPixel rows, TapsOfPixel cols, const T* mask,
                              T* dx, Pixels packs) {
    for (size_t i = first_index(); i < packs.count; i += grid_width()) {
        const Pixel at = packs[i];
        rows.find(at.h + window.pad_h, window.size_h, window.stride_h, window.dilation_h);
        cols.find(at.w + window.pad_w, window.size_w, window.stride_w, window.dilation_w);
        const int i0 = rows.begin(ys.H), i1 = rows.end(), j0 = cols.begin(ys.W), j1 = cols.end();
        float sum[kWide] = {};
        for (int r = i0; r < i1; ++r)
            for (int s = j0; s < j1; ++s)
                add_tap(sum, dy + index(ys, at.n, rows.read_for(r), cols.read_for(s), at.c),
                        w + (rows.tap(r) * window.size_w + cols.tap(s)) * ys.C + at.c);
        if (mask) mask_pack(sum, mask + i * kWide);
        store_pack(dx + i * kWide, sum);
    }
}

// parts[part][c·taps + tap] of tap blockIdx.y, part blockIdx.z.
template <class T, int kWide>
__global__ void grad_w_kernel(const T* __restrict__ x, Shape xs, const T* __restrict__ dy,
                              Pixels pixels, Window window, float* parts) {
    const int c = first_channel<kWide>(), tap = blockIdx.y, taps = gridDim.y;
    const int r = tap / window.size_w, s = tap - r * window.size_w;
    const int64_t rows = int64_t(pixels.count);
    const int64_t begin = rows * blockIdx.z / gridDim.z, end = rows * (blockIdx.z + 1) / gridDim.z;
    float sums[kWide] = {};
    for (int64_t row = begin + threadIdx.y; row < end && c < xs.C; row += blockDim.y) {
        const Pixel at = pixels[size_t(row)];
        const int h = at.h * window.stride_h - window.pad_h + r * window.dilation_h;
        const int v = at.w * window.stride_w - window.pad_w + s * window.dilation_w;
        if (h >= 0 && v >= 0 && h < xs.H && v < xs.W)
            add_tap(sums, dy + row * xs.C + c, x + index(xs, at.n, h, v, c));
    }
    add_columns(sums);
    if (threadIdx.y > 0 || c >= xs.C) return;
    for (int e = 0; e < kWide; ++e)
        parts[(size_t(blockIdx.z) * xs.C + c + e) * taps + tap] = sums[e];
}

}  // namespace

void CudaBackend::depthwise(Tensor x, Tensor w, const float* b, Window window, bool relu,
                            Tensor y) {
    with_pack({y, x}, [&]<class T>(T, auto wide) {
        const Pixels packs(y.shape(), wide());
        forward_kernel<T, wide()><<<blocks_for(packs.count), kThreads, 0, stream_>>>(
            elements<T>(x), x.shape(), elements<T>(w), b, window, relu, elements<T>(y), packs);
        CUDA_LAUNCHED();
    });
}

void CudaBackend::depthwise_grad_x(Tensor dy, Tensor w, Window window, Tensor mask, Tensor dx) {
    const TapsOfPixel rows(0, window.size_h, window.stride_h, window.pad_h, window.dilation_h);
    const TapsOfPixel cols(0, window.size_w, window.stride_w, window.pad_w, window.dilation_w);
    with_pack({dx, dy, mask}, [&]<class T>(T, auto wide) {
        const Pixels packs(dx.shape(), wide());
        grad_x_kernel<T, wide()><<<blocks_for(packs.count), kThreads, 0, stream_>>>(
            elements<T>(dy), dy.shape(), elements<T>(w), window, rows, cols, elements<T>(mask),
            elements<T>(dx), packs);
        CUDA_LAUNCHED();
    });
}

void CudaBackend::depthwise_grad_w(Tensor x, Tensor dy, Window window, Tensor dw) {
    const int taps = dw.H * dw.W;
    ENSURE(taps <= 65535, "a window of ", taps, " pixels");  // the y of a grid
    const int64_t rows = int64_t(dy.elems()) / dy.C;
    with_columns({x, dy}, taps, [&]<class T>(T, auto wide, dim3 grid, dim3 block) {
        // As many parts as fill the GPU a few times, of 64 rows at least.
        const int64_t blocks = int64_t(grid.x) * taps;
        grid.z = unsigned(std::clamp<int64_t>(processors_ * 16 / blocks, 1, ceil_div(rows, 64)));
        float* sums = memory_.scratch<float>(kSlotProduct, grid.z * dw.elems());
        grad_w_kernel<T, wide()>
            <<<grid, block, 0, stream_>>>(elements<T>(x), x.shape(), elements<T>(dy),
                                          Pixels({dy.N, dy.H, dy.W, 1}, 1), window, sums);
        CUDA_LAUNCHED();
        add_column_sums({sums, {int(grid.z), 1, 1, int(dw.elems())}}, dw.floats());
    });
}

}  // namespace convoy::CONVOY_DEVICE
