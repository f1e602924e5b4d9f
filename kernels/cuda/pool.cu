// pool.cu — max pooling and adaptive average pooling, NHWC.   Twin: kernels/cpu/pool.cpp
//
//   max_pool       y = max over the window, argmax = r·S + s of the first maximum
//   max_pool_grad  dx = Σ of dy over the windows whose argmax it is
//   avg_pool       y = mean over rows [⌊p·H/P⌋, ⌈(p+1)·H/P⌉), columns likewise; its gradient
//
//   grid    a thread for each output number (of dx in the gradients), the channel fastest: a warp
//           reads 32 neighbouring channels of one pixel. Loops as wide as the grid.
//   bytes   x read about once (windows overlap in the cache), y written once; argmax a byte a
//           number. Bound by memory.
//   order   rows, then columns of the window; gradients gather, so nothing is added at random.
#include "kernels/cuda/cuda_backend.h"
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

__global__ void max_pool_kernel(const float* __restrict__ x, Shape xs, Window window,
                                float* __restrict__ y, Shape ys, size_t outputs, uint8_t* argmax) {
    for (size_t i = first_index(); i < outputs; i += grid_width()) {
        const Place at(i, ys);
        const int h0 = at.h * window.stride_h - window.pad_h;
        const int w0 = at.w * window.stride_w - window.pad_w;
        float best = 0;
        int where = -1;
        for (int r = max(0, -h0); r < min(window.size_h, xs.H - h0); ++r)
            for (int s = max(0, -w0); s < min(window.size_w, xs.W - w0); ++s) {
                const float v = x[index(xs, at.n, h0 + r, w0 + s, at.c)];
                // A NaN wins, and stays.
                if (where < 0 || v > best || v != v) best = v, where = r * window.size_w + s;
            }
        y[i] = best;
        argmax[i] = uint8_t(where);  // a window has at most 256 places
    }
}

__global__ void max_pool_grad_kernel(const float* __restrict__ dy, const uint8_t* argmax, Shape ys,
                                     Window window, const float* mask, float* dx, Shape xs,
                                     size_t inputs) {
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
                if (argmax[from] == r * window.size_w + s) sum += dy[from];
            }
        dx[i] = mask && mask[i] <= 0 ? 0.0f : sum;
    }
}

// Adaptive pooling: output p covers the rows [begin(p), end(p)) of H.
__device__ __forceinline__ int area_begin(int p, int outputs, int inputs) {
    return int(int64_t(p) * inputs / outputs);
}
__device__ __forceinline__ int area_end(int p, int outputs, int inputs) {
    return int((int64_t(p + 1) * inputs + outputs - 1) / outputs);
}

__global__ void avg_pool_kernel(const float* __restrict__ x, Shape xs, float* __restrict__ y,
                                Shape ys, size_t outputs) {
    for (size_t i = first_index(); i < outputs; i += grid_width()) {
        const Place at(i, ys);
        const int h0 = area_begin(at.h, ys.H, xs.H), h1 = area_end(at.h, ys.H, xs.H);
        const int w0 = area_begin(at.w, ys.W, xs.W), w1 = area_end(at.w, ys.W, xs.W);
        float sum = 0;
        for (int h = h0; h < h1; ++h)
            for (int w = w0; w < w1; ++w) sum += x[index(xs, at.n, h, w, at.c)];
        y[i] = sum / float((h1 - h0) * (w1 - w0));
    }
}

__global__ void avg_pool_grad_kernel(const float* __restrict__ dy, Shape ys, float* __restrict__ dx,
                                     Shape xs, size_t inputs) {
    for (size_t i = first_index(); i < inputs; i += grid_width()) {
        const Place at(i, xs);
        // Outputs whose area holds h: p·H/P ≤ h < (p+1)·H/P, both ends rounded outwards.
        const int p0 = area_begin(at.h, xs.H, ys.H), p1 = area_end(at.h, xs.H, ys.H);
        const int q0 = area_begin(at.w, xs.W, ys.W), q1 = area_end(at.w, xs.W, ys.W);
        float sum = 0;
        for (int p = p0; p < p1; ++p)
            for (int q = q0; q < q1; ++q) {
                const int rows = area_end(p, ys.H, xs.H) - area_begin(p, ys.H, xs.H);
                const int cols = area_end(q, ys.W, xs.W) - area_begin(q, ys.W, xs.W);
                sum += dy[index(ys, at.n, p, q, at.c)] / float(rows * cols);
            }
        dx[i] = sum;
    }
}

}  // namespace

void CudaBackend::max_pool(Tensor x, Window window, Tensor y, uint8_t* argmax) {
    check_max_pool(x.shape(), window, y.shape());
    if (y.elems() == 0) return;
    max_pool_kernel<<<blocks_for(y.elems()), kThreads, 0, stream_>>>(
        x.data, x.shape(), window, y.data, y.shape(), y.elems(), argmax);
    CUDA_LAUNCHED();
}

void CudaBackend::max_pool_grad(Tensor dy, const uint8_t* argmax, Window window, const float* mask,
                                Tensor dx) {
    check_max_pool(dx.shape(), window, dy.shape());
    if (dx.elems() == 0) return;
    max_pool_grad_kernel<<<blocks_for(dx.elems()), kThreads, 0, stream_>>>(
        dy.data, argmax, dy.shape(), window, mask, dx.data, dx.shape(), dx.elems());
    CUDA_LAUNCHED();
}

void CudaBackend::avg_pool(Tensor x, Tensor y) {
    check_avg_pool(x, y);
    if (y.elems() == 0) return;
    avg_pool_kernel<<<blocks_for(y.elems()), kThreads, 0, stream_>>>(x.data, x.shape(), y.data,
                                                                     y.shape(), y.elems());
    CUDA_LAUNCHED();
}

void CudaBackend::avg_pool_grad(Tensor dy, Tensor dx) {
    check_avg_pool(dx, dy);
    if (dx.elems() == 0) return;
    avg_pool_grad_kernel<<<blocks_for(dx.elems()), kThreads, 0, stream_>>>(
        dy.data, dy.shape(), dx.data, dx.shape(), dx.elems());
    CUDA_LAUNCHED();
}

}  // namespace convoy::CONVOY_DEVICE
