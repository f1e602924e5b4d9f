// pool.cu — max pooling and adaptive average pooling, NHWC.   Twin: kernels/cpu/pool.cpp
//
//   max_pool       y = max over the window, argmax = r·S + s of the first maximum
//   max_pool_grad  dx = Σ of dy over the windows whose argmax it is
//   avg_pool       y = mean over rows [⌊p·H/P⌋, ⌈(p+1)·H/P⌉), columns likewise; its gradient
//
//   grid    a thread for each output number (of dx in the gradients), the channel fastest: a warp
//           reads 32 neighbouring channels of one pixel. Loops as wide as the grid.
//   bytes   4 a number, 2 where they are bf16: x read about once (windows overlap in the cache), y
//           written once; argmax a byte a number. Bound by memory.
//   order   rows, then columns of the window; gradients gather, so nothing is added at random.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/numbers.h"
#include "kernels/shapes.h"

namespace convoy::CONVOY_DEVICE {

namespace {

// Number i of a tensor N×H×W×C.
struct Place {
    int n, h, w, c;
    __device__ Place(size_t i, Shape s)
        : n(int(i / (size_t(s.H) * s.W * s.C))),
          h(int(i / (size_t(s.W) * s.C) % s.H)),
          w(int(i / s.C % s.W)),
          c(int(i % s.C)) {}
};
__device__ __forceinline__ size_t index(Shape s, int n, int h, int w, int c) {
    return ((size_t(n) * s.H + h) * s.W + w) * s.C + c;
}

template <class T>
__global__ void max_pool_kernel(const T* __restrict__ x, Shape xs, Window window, T* __restrict__ y,
                                Shape ys, size_t outputs, uint8_t* argmax) {
    for (size_t i = first_index(); i < outputs; i += grid_width()) {
        const Place at(i, ys);
        const int h0 = at.h * window.stride_h - window.pad_h;
        const int w0 = at.w * window.stride_w - window.pad_w;
        float best = 0;
        int where = -1;
        for (int r = max(0, -h0); r < min(window.size_h, xs.H - h0); ++r)
            for (int s = max(0, -w0); s < min(window.size_w, xs.W - w0); ++s) {
                const float v = load(x + index(xs, at.n, h0 + r, w0 + s, at.c));
                // A NaN wins, and stays.
                if (where < 0 || v > best || v != v) best = v, where = r * window.size_w + s;
            }
        store(y + i, best);
        argmax[i] = uint8_t(where);  // a window has at most 256 places
    }
}

template <class T>
__global__ void max_pool_grad_kernel(const T* __restrict__ dy, const uint8_t* argmax, Shape ys,
                                     Window window, const T* mask, T* dx, Shape xs, size_t inputs) {
    for (size_t i = first_index(); i < inputs; i += grid_width()) {
        const Place at(i, xs);
        // The windows that contain this pixel: p·stride − pad ≤ h < p·stride − pad + size.
        const int h = at.h + window.pad_h, w = at.w + window.pad_w;
        const int p0 = h < window.size_h ? 0 : (h - window.size_h) / window.stride_h + 1;
        const int q0 = w < window.size_w ? 0 : (w - window.size_w) / window.stride_w + 1;
        const int p1 = min(h / window.stride_h, ys.H - 1), q1 = min(w / window.stride_w, ys.W - 1);
        float sum = 0;
        for (int p = p0; p <= p1; ++p)
            for (int q = q0; q <= q1; ++q) {
                const size_t from = index(ys, at.n, p, q, at.c);
                const int r = h - p * window.stride_h, s = w - q * window.stride_w;
                if (argmax[from] == r * window.size_w + s) sum += load(dy + from);
            }
        store(dx + i, mask && load(mask + i) <= 0 ? 0.0f : sum);
    }
}

// Adaptive pooling: pixel (h, w) of an image like `own` covers the rows [h0, h1), columns [w0, w1)
// of one like `other`. Which of the two is larger makes no difference: rows [h·H'/H, (h+1)·H'/H),
// both ends rounded outwards, are those that it shares something with.
struct Area {
    int h0, h1, w0, w1;
    __device__ Area(int h, int w, Shape own, Shape other)
        : h0(begin(h, own.H, other.H)),
          h1(end(h, own.H, other.H)),
          w0(begin(w, own.W, other.W)),
          w1(end(w, own.W, other.W)) {}
    __device__ int pixels() const { return (h1 - h0) * (w1 - w0); }
    static __device__ int begin(int p, int own, int other) { return int(int64_t(p) * other / own); }
    static __device__ int end(int p, int own, int other) {
        return int((int64_t(p + 1) * other + own - 1) / own);
    }
};

template <class T>
__global__ void avg_pool_kernel(const T* __restrict__ x, Shape xs, T* __restrict__ y, Shape ys,
                                size_t outputs) {
    for (size_t i = first_index(); i < outputs; i += grid_width()) {
        const Place at(i, ys);
        const Area area(at.h, at.w, ys, xs);
        float sum = 0;
        for (int h = area.h0; h < area.h1; ++h)
            for (int w = area.w0; w < area.w1; ++w) sum += load(x + index(xs, at.n, h, w, at.c));
        store(y + i, sum / float(area.pixels()));
    }
}

template <class T>
__global__ void avg_pool_grad_kernel(const T* __restrict__ dy, Shape ys, T* __restrict__ dx,
                                     Shape xs, size_t inputs) {
    for (size_t i = first_index(); i < inputs; i += grid_width()) {
        const Place at(i, xs);
        const Area outputs(at.h, at.w, xs, ys);
        float sum = 0;
        for (int p = outputs.h0; p < outputs.h1; ++p)
            for (int q = outputs.w0; q < outputs.w1; ++q)
                sum += load(dy + index(ys, at.n, p, q, at.c)) / float(Area(p, q, ys, xs).pixels());
        store(dx + i, sum);
    }
}

}  // namespace

void CudaBackend::max_pool(Tensor x, Window window, Tensor y, uint8_t* argmax) {
    check_max_pool(x.shape(), window, y.shape());
    if (y.elems() == 0) return;
    with_type(x.type, [&](auto type) {
        using T = decltype(type);
        max_pool_kernel<T><<<blocks_for(y.elems()), kThreads, 0, stream_>>>(
            numbers<T>(x), x.shape(), window, numbers<T>(y), y.shape(), y.elems(), argmax);
        CUDA_LAUNCHED();
    });
}

void CudaBackend::max_pool_grad(Tensor dy, const uint8_t* argmax, Window window, Tensor mask,
                                Tensor dx) {
    check_max_pool(dx.shape(), window, dy.shape());
    check_mask(mask, dx);
    if (dx.elems() == 0) return;
    with_type(dx.type, [&](auto type) {
        using T = decltype(type);
        max_pool_grad_kernel<T><<<blocks_for(dx.elems()), kThreads, 0, stream_>>>(
            numbers<T>(dy), argmax, dy.shape(), window, numbers<T>(mask), numbers<T>(dx),
            dx.shape(), dx.elems());
        CUDA_LAUNCHED();
    });
}

void CudaBackend::avg_pool(Tensor x, Tensor y) {
    check_avg_pool(x, y);
    if (y.elems() == 0) return;
    with_type(x.type, [&](auto type) {
        using T = decltype(type);
        avg_pool_kernel<T><<<blocks_for(y.elems()), kThreads, 0, stream_>>>(
            numbers<T>(x), x.shape(), numbers<T>(y), y.shape(), y.elems());
        CUDA_LAUNCHED();
    });
}

void CudaBackend::avg_pool_grad(Tensor dy, Tensor dx) {
    check_avg_pool(dx, dy);
    if (dx.elems() == 0) return;
    with_type(dx.type, [&](auto type) {
        using T = decltype(type);
        avg_pool_grad_kernel<T><<<blocks_for(dx.elems()), kThreads, 0, stream_>>>(
            numbers<T>(dy), dy.shape(), numbers<T>(dx), dx.shape(), dx.elems());
        CUDA_LAUNCHED();
    });
}

}  // namespace convoy::CONVOY_DEVICE
