// pool.cu — max pooling and adaptive average pooling, NHWC.   Twin: kernels/cpu/pool.cpp
//
//   max_pool       y = max over the window, argmax = r·S + s of the first maximum
//   max_pool_grad  dx = Σ of dy over the windows whose argmax it is
//   avg_pool       y = mean over rows [⌊p·H/P⌋, ⌈(p+1)·H/P⌉), columns likewise; its gradient
//
//   grid    a thread for 16 bytes of channels of an output pixel (of dx in the gradients), or for
//           one channel if they do not fill 16 bytes; the channel is fastest, so a warp reads
//           neighbours. Loops as wide as the grid.
//   bytes   4 a number, 2 where they are bf16: x read about once (windows overlap in the cache), y
//           written once; argmax a byte a number. Bound by memory.
//   order   rows, then columns of the window; gradients gather, so the order of sums is fixed.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/pixel.cuh"
#include "kernels/shapes.h"

namespace convoy::CONVOY_DEVICE {

namespace {

template <class T, int kWide>
__global__ void max_pool_kernel(const T* __restrict__ x, Shape xs, Window window, T* __restrict__ y,
                                Pixels packs, uint8_t* argmax) {
    for (size_t i = first_index(); i < packs.count; i += grid_width()) {
        const Pixel at = packs[i];
        const int h0 = at.h * window.stride_h - window.pad_h;
        const int w0 = at.w * window.stride_w - window.pad_w;
        float best[kWide];
        int where[kWide];
        for (int e = 0; e < kWide; ++e) best[e] = 0, where[e] = -1;
        for (int r = max(0, -h0); r < min(window.size_h, xs.H - h0); ++r)
            for (int s = max(0, -w0); s < min(window.size_w, xs.W - w0); ++s) {
                float v[kWide];
                load_pack(v, x + index(xs, at.n, h0 + r, w0 + s, at.c));
#pragma unroll
                for (int e = 0; e < kWide; ++e)  // a NaN wins, and stays
                    if (where[e] < 0 || v[e] > best[e] || v[e] != v[e])
                        best[e] = v[e], where[e] = r * window.size_w + s;
            }
        store_pack(y + i * kWide, best);
        Pack<uint8_t, kWide> bytes;  // a window has at most 256 places
        for (int e = 0; e < kWide; ++e) bytes.at[e] = uint8_t(where[e]);
        reinterpret_cast<Pack<uint8_t, kWide>*>(argmax)[i] = bytes;
    }
}

template <class T, int kWide>
__global__ void max_pool_grad_kernel(const T* __restrict__ dy, const uint8_t* argmax, Shape ys,
                                     Window window, Divisor stride_h, Divisor stride_w,
                                     const T* mask, T* dx, Pixels packs) {
    for (size_t i = first_index(); i < packs.count; i += grid_width()) {
        const Pixel at = packs[i];
        // The windows that contain this pixel: p·stride − pad ≤ h < p·stride − pad + size.
        const int h = at.h + window.pad_h, w = at.w + window.pad_w;
        const int p0 = h < window.size_h ? 0 : (h - window.size_h) / stride_h + 1;
        const int q0 = w < window.size_w ? 0 : (w - window.size_w) / stride_w + 1;
        const int p1 = min(h / stride_h, ys.H - 1), q1 = min(w / stride_w, ys.W - 1);
        float sum[kWide] = {};
        for (int p = p0; p <= p1; ++p)
            for (int q = q0; q <= q1; ++q) {
                const size_t from = index(ys, at.n, p, q, at.c);
                const int own = (h - p * window.stride_h) * window.size_w + w - q * window.stride_w;
                const auto bytes = *reinterpret_cast<const Pack<uint8_t, kWide>*>(argmax + from);
                float v[kWide];
                load_pack(v, dy + from);
#pragma unroll
                for (int e = 0; e < kWide; ++e) sum[e] += bytes.at[e] == own ? v[e] : 0.0f;
            }
        if (mask) mask_pack(sum, mask + i * kWide);
        store_pack(dx + i * kWide, sum);
    }
}

// Adaptive pooling: pixel (h, w) of an image like `own` covers the rows [h0, h1), columns [w0, w1)
// of an image like `other`, whichever is larger. These are the rows that overlap with the pixel:
// [h·H'/H, (h+1)·H'/H), both ends rounded outwards.
struct Area {
    int h0, h1, w0, w1;
    __device__ Area(int h, int w, Divisor own_H, Divisor own_W, Shape other)
        : h0(begin(h, own_H, other.H)),
          h1(end(h, own_H, other.H)),
          w0(begin(w, own_W, other.W)),
          w1(end(w, own_W, other.W)) {}
    __device__ int pixels() const { return (h1 - h0) * (w1 - w0); }
    static __device__ int begin(int p, Divisor own, int other) { return p * other / own; }
    static __device__ int end(int p, Divisor own, int other) {
        return ((p + 1) * other + own.by - 1) / own;
    }
};

template <class T, int kWide>
__global__ void avg_pool_kernel(const T* __restrict__ x, Shape xs, T* __restrict__ y,
                                Pixels packs) {
    for (size_t i = first_index(); i < packs.count; i += grid_width()) {
        const Pixel at = packs[i];
        const Area area(at.h, at.w, packs.H, packs.W, xs);
        float sum[kWide] = {};
        for (int h = area.h0; h < area.h1; ++h)
            for (int w = area.w0; w < area.w1; ++w) {
                float v[kWide];
                load_pack(v, x + index(xs, at.n, h, w, at.c));
#pragma unroll
                for (int e = 0; e < kWide; ++e) sum[e] += v[e];
            }
        for (float& v : sum) v /= float(area.pixels());
        store_pack(y + i * kWide, sum);
    }
}

template <class T, int kWide>
__global__ void avg_pool_grad_kernel(const T* __restrict__ dy, Shape ys, Divisor P, Divisor Q,
                                     T* __restrict__ dx, Shape xs, Pixels packs, bool add) {
    for (size_t i = first_index(); i < packs.count; i += grid_width()) {
        const Pixel at = packs[i];
        const Area outputs(at.h, at.w, packs.H, packs.W, ys);
        float sum[kWide] = {};
        if (add) load_pack(sum, dx + i * kWide);
        for (int p = outputs.h0; p < outputs.h1; ++p)
            for (int q = outputs.w0; q < outputs.w1; ++q) {
                const float share = 1 / float(Area(p, q, P, Q, xs).pixels());
                float v[kWide];
                load_pack(v, dy + index(ys, at.n, p, q, at.c));
#pragma unroll
                for (int e = 0; e < kWide; ++e) sum[e] += v[e] * share;
            }
        store_pack(dx + i * kWide, sum);
    }
}

}  // namespace

void CudaBackend::max_pool(Tensor x, Window window, Tensor y, uint8_t* argmax) {
    check_max_pool(x.shape(), window, y.shape());
    with_pack({y, x}, [&]<class T>(T, auto wide) {
        const Pixels packs(y.shape(), wide());
        max_pool_kernel<T, wide()><<<blocks_for(packs.count), kThreads, 0, stream_>>>(
            elements<T>(x), x.shape(), window, elements<T>(y), packs, argmax);
        CUDA_LAUNCHED();
    });
}

void CudaBackend::max_pool_grad(Tensor dy, const uint8_t* argmax, Window window, Tensor mask,
                                Tensor dx) {
    check_max_pool(dx.shape(), window, dy.shape());
    check_mask(mask, dx);
    with_pack({dx, dy, mask}, [&]<class T>(T, auto wide) {
        const Pixels packs(dx.shape(), wide());
        max_pool_grad_kernel<T, wide()><<<blocks_for(packs.count), kThreads, 0, stream_>>>(
            elements<T>(dy), argmax, dy.shape(), window, window.stride_h, window.stride_w,
            elements<T>(mask), elements<T>(dx), packs);
        CUDA_LAUNCHED();
    });
}

void CudaBackend::avg_pool(Tensor x, Tensor y) {
    check_avg_pool(x, y);
    ENSURE(int64_t(x.H) * (y.H + 1) <= INT32_MAX && int64_t(x.W) * (y.W + 1) <= INT32_MAX, "x is ",
           x.shape().text(), ", y is ", y.shape().text());  // for Area
    with_pack({y, x}, [&]<class T>(T, auto wide) {
        const Pixels packs(y.shape(), wide());
        avg_pool_kernel<T, wide()><<<blocks_for(packs.count), kThreads, 0, stream_>>>(
            elements<T>(x), x.shape(), elements<T>(y), packs);
        CUDA_LAUNCHED();
    });
}

void CudaBackend::avg_pool_grad(Tensor dy, Tensor dx, bool add) {
    check_avg_pool(dx, dy);
    with_pack({dx, dy}, [&]<class T>(T, auto wide) {
        const Pixels packs(dx.shape(), wide());
        avg_pool_grad_kernel<T, wide()><<<blocks_for(packs.count), kThreads, 0, stream_>>>(
            elements<T>(dy), dy.shape(), dy.H, dy.W, elements<T>(dx), dx.shape(), packs, add);
        CUDA_LAUNCHED();
    });
}

}  // namespace convoy::CONVOY_DEVICE
