// optimizer.cu — one pass over slices of the arenas.   Twin: kernels/cpu/optimizer.cpp
//
//   sgd    g' = scale·g + decay·w;  v = momentum·v + g';  w −= lr·(a·g' + b·v)
//          20 bytes a parameter: w, g, v read, w, v written
//   adamw  m = β1·m + (1−β1)·g';  v = β2·v + (1−β2)·g'²;  w = keep·w − step·m/(√v·root + eps)
//          28 bytes a parameter
//   axpby  y = a·x + b·y, 12 bytes
//
//   grid    as in elementwise.cu: neighbouring threads take neighbouring parameters.
//   bound   by memory.
//   order   nothing is summed. first_nonfinite takes a minimum, which no order changes.
#include <cmath>

#include "kernels/cuda/cuda_backend.h"

namespace convoy::CONVOY_DEVICE {

namespace {

__global__ void sgd_kernel(float* __restrict__ w, const float* __restrict__ g,
                           float* __restrict__ v, size_t n, float scale, float lr, float momentum,
                           float weight_decay, float a, float b) {
    for (size_t i = first_index(); i < n; i += grid_width()) {
        const float grad = scale * g[i] + weight_decay * w[i];
        const float velocity = momentum * v[i] + grad;
        v[i] = velocity;
        w[i] -= lr * (a * grad + b * velocity);
    }
}

__global__ void adamw_kernel(float* __restrict__ w, const float* __restrict__ g,
                             float* __restrict__ m, float* __restrict__ v, size_t n, float scale,
                             float beta1, float beta2, float keep, float step, float root,
                             float eps) {
    for (size_t i = first_index(); i < n; i += grid_width()) {
        const float grad = scale * g[i];
        const float first = beta1 * m[i] + (1 - beta1) * grad;
        const float second = beta2 * v[i] + (1 - beta2) * grad * grad;
        m[i] = first, v[i] = second;
        w[i] = keep * w[i] - step * first / (sqrtf(second) * root + eps);
    }
}

__global__ void axpby_kernel(float a, const float* x, float b, float* y, size_t n) {
    for (size_t i = first_index(); i < n; i += grid_width())
        y[i] = b == 0 ? a * x[i] : a * x[i] + b * y[i];
}

__global__ void nonfinite_kernel(const float* x, size_t n, unsigned long long* first) {
    for (size_t i = first_index(); i < n; i += grid_width())
        if ((__float_as_uint(x[i]) & 0x7F800000u) == 0x7F800000u)
            atomicMin(first, static_cast<unsigned long long>(i));
}

}  // namespace

void CudaBackend::sgd(float* w, const float* g, float* v, size_t n, float scale, float lr,
                      float momentum, float weight_decay, bool nesterov) {
    if (n == 0) return;
    // Both forms are w −= lr·(a·g' + b·v).
    const float a = nesterov ? 1.0f : 0.0f, b = nesterov ? momentum : 1.0f;
    sgd_kernel<<<blocks_for(n), kThreads, 0, stream_>>>(w, g, v, n, scale, lr, momentum,
                                                        weight_decay, a, b);
    CUDA_LAUNCHED();
}

void CudaBackend::adamw(float* w, const float* g, float* m, float* v, size_t n, float scale,
                        float lr, float beta1, float beta2, float eps, float weight_decay,
                        int64_t t) {
    ENSURE(t >= 1, "step t is ", t);
    if (n == 0) return;
    const float keep = 1 - lr * weight_decay;
    const float step = float(lr / (1 - std::pow(double(beta1), double(t))));
    const float root = float(1 / std::sqrt(1 - std::pow(double(beta2), double(t))));
    adamw_kernel<<<blocks_for(n), kThreads, 0, stream_>>>(w, g, m, v, n, scale, beta1, beta2, keep,
                                                          step, root, eps);
    CUDA_LAUNCHED();
}

void CudaBackend::axpby(float a, const float* x, float b, float* y, size_t n) {
    if (n == 0) return;
    axpby_kernel<<<blocks_for(n), kThreads, 0, stream_>>>(a, x, b, y, n);
    CUDA_LAUNCHED();
}

int64_t CudaBackend::first_nonfinite(const float* x, size_t n) {
    if (n == 0) return -1;
    auto* first = memory_.scratch<unsigned long long>(kSlotResult, 1);
    CUDA_CHECK(cudaMemsetAsync(first, 0xFF, sizeof *first, stream_));  // beyond every index
    nonfinite_kernel<<<blocks_for(n), kThreads, 0, stream_>>>(x, n, first);
    CUDA_LAUNCHED();
    unsigned long long found = 0;
    download(&found, first, sizeof found);
    return found == ~0ull ? -1 : int64_t(found);
}

}  // namespace convoy::CONVOY_DEVICE
