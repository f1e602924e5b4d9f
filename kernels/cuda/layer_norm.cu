// layer_norm.cu — over the channels of each pixel.   Twin: kernels/cpu/layer_norm.cpp
//
//   y  = (x − mean)·rstd          dx = rstd·(dy − mean(dy) − y·mean(dy·y))
//
//   grid    one warp a pixel, 8 warps a block; lane l takes the channels l, l+32, …
//   bytes   forward x read, y written; backward y and dy read, dx written. Memory-bound: a number
//           is read again from the cache.
//   order   lanes first, then a tree over the warp (shuffles)
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/elements.h"
#include "kernels/shapes.h"

namespace convoy::CONVOY_DEVICE {

namespace {

constexpr int kPixelWarps = 8;

// y may be x: a lane reads only the numbers that it writes.
template <class T>
__global__ void layer_norm_kernel(const T* x, int64_t pixels, int C, float eps, T* y, float* rstd) {
    const int64_t pixel = int64_t(blockIdx.x) * kPixelWarps + threadIdx.y;
    if (pixel >= pixels) return;  // a whole warp
    x += pixel * C, y += pixel * C;
    float sum = 0, squares = 0;
    for (int c = threadIdx.x; c < C; c += 32) sum += load(x + c);
    const float mean = warp_sum(sum) / float(C);
    for (int c = threadIdx.x; c < C; c += 32) {
        const float off = load(x + c) - mean;
        squares += off * off;
    }
    const float scale = 1 / sqrtf(warp_sum(squares) / float(C) + eps);
    for (int c = threadIdx.x; c < C; c += 32) store(y + c, (load(x + c) - mean) * scale);
    if (rstd && threadIdx.x == 0) rstd[pixel] = scale;
}

// dx may be dy.
template <class T>
__global__ void layer_norm_grad_kernel(const T* y, const float* rstd, const T* dy, int64_t pixels,
                                       int C, T* dx) {
    const int64_t pixel = int64_t(blockIdx.x) * kPixelWarps + threadIdx.y;
    if (pixel >= pixels) return;  // a whole warp
    y += pixel * C, dy += pixel * C, dx += pixel * C;
    float sum = 0, products = 0;
    for (int c = threadIdx.x; c < C; c += 32) {
        const float grad = load(dy + c);
        sum += grad, products += grad * load(y + c);
    }
    const float mean = warp_sum(sum) / float(C), slope = warp_sum(products) / float(C);
    const float scale = rstd[pixel];
    for (int c = threadIdx.x; c < C; c += 32)
        store(dx + c, scale * (load(dy + c) - mean - load(y + c) * slope));
}

}  // namespace

void CudaBackend::layer_norm(Tensor x, float eps, Tensor y, float* rstd) {
    check_same("x", x, "y", y);
    if (x.elems() == 0) return;
    const int64_t pixels = int64_t(x.N) * x.H * x.W;
    with_type(x.type, [&]<class T>(T) {
        layer_norm_kernel<T><<<ceil_div(pixels, kPixelWarps), dim3(32, kPixelWarps), 0, stream_>>>(
            elements<T>(x), pixels, x.C, eps, elements<T>(y), rstd);
        CUDA_LAUNCHED();
    });
}

void CudaBackend::layer_norm_grad(Tensor y, const float* rstd, Tensor dy, Tensor dx) {
    check_same("y", y, "dy", dy);
    check_same("y", y, "dx", dx);
    if (y.elems() == 0) return;
    const int64_t pixels = int64_t(y.N) * y.H * y.W;
    with_type(y.type, [&]<class T>(T) {
        layer_norm_grad_kernel<T>
            <<<ceil_div(pixels, kPixelWarps), dim3(32, kPixelWarps), 0, stream_>>>(
                elements<T>(y), rstd, elements<T>(dy), pixels, y.C, elements<T>(dx));
        CUDA_LAUNCHED();
    });
}

}  // namespace convoy::CONVOY_DEVICE
