// layer_norm.cpp — a pixel's channels stay in the L1 cache, so memory is read and written once.
// Twin: kernels/cuda/layer_norm.cu
#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/elements.h"
#include "kernels/shapes.h"

namespace convoy {

// Σ f(c), c < C, in 16 interleaved sums.
template <class F>
static float sum_over(int C, F&& f) {
    float sums[16] = {};
    int c = 0;
    for (; c + 16 <= C; c += 16)
        for (int i = 0; i < 16; ++i) sums[i] += f(c + i);
    for (; c < C; ++c) sums[0] += f(c);
    float sum = 0;
    for (const float part : sums) sum += part;
    return sum;
}

void CpuBackend::layer_norm(Tensor x, float eps, Tensor y, float* rstd) {
    check_same("x", x, "y", y);
    const int C = x.C;
    with_type(x.type, [&]<class T>(T) {
        cpu_.pool.for_ranges(
            size_t(x.N) * x.H * x.W, kGrain / (C + 1) + 1, [&](size_t begin, size_t end) {
                for (size_t pixel = begin; pixel < end; ++pixel) {
                    const T* from = elements<T>(x) + pixel * C;
                    T* to = elements<T>(y) + pixel * C;
                    const float mean =
                        sum_over(C, [&](int c) { return float(from[c]); }) / float(C);
                    const auto square = [&](int c) {
                        return (float(from[c]) - mean) * (float(from[c]) - mean);
                    };
                    const float scale = 1 / std::sqrt(sum_over(C, square) / float(C) + eps);
#pragma GCC ivdep
                    for (int c = 0; c < C; ++c) to[c] = (float(from[c]) - mean) * scale;
                    if (rstd) rstd[pixel] = scale;
                }
            });
    });
}

void CpuBackend::layer_norm_grad(Tensor y, const float* rstd, Tensor dy, Tensor dx) {
    check_same("y", y, "dy", dy);
    check_same("y", y, "dx", dx);
    const int C = y.C;
    with_type(y.type, [&]<class T>(T) {
        cpu_.pool.for_ranges(
            size_t(y.N) * y.H * y.W, kGrain / (C + 1) + 1, [&](size_t begin, size_t end) {
                for (size_t pixel = begin; pixel < end; ++pixel) {
                    const T *out = elements<T>(y) + pixel * C, *grad = elements<T>(dy) + pixel * C;
                    T* to = elements<T>(dx) + pixel * C;
                    const auto product = [&](int c) { return float(grad[c]) * float(out[c]); };
                    const float mean =
                        sum_over(C, [&](int c) { return float(grad[c]); }) / float(C);
                    const float slope = sum_over(C, product) / float(C), scale = rstd[pixel];
#pragma GCC ivdep
                    for (int c = 0; c < C; ++c)
                        to[c] = scale * (float(grad[c]) - mean - float(out[c]) * slope);
                }
            });
    });
}

}  // namespace convoy
