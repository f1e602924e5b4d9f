// optimizer.cpp — one pass over slices of the arenas. Bound by memory: SGD reads 12 and writes 8
// bytes a parameter.
#include <algorithm>
#include <bit>
#include <cmath>
#include <mutex>

#include "kernels/cpu/cpu_backend.h"

namespace convoy {

namespace {

constexpr size_t kGrain = 16384;  // floats: 64 KB a thread at least

bool is_bad(float v) {  // infinite or NaN: all bits of the exponent are set
    return (std::bit_cast<uint32_t>(v) & 0x7F800000u) == 0x7F800000u;
}

// The first i in [0, n) for which x[i] is NaN or infinite, or -1.
int64_t first_nonfinite(const float* x, size_t n, ThreadPool& pool) {
    constexpr size_t kBlock = 4096;  // searched without a branch
    std::mutex mutex;
    size_t first = n;
    pool.for_ranges(n, kGrain, [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end; i += kBlock) {
            const size_t last = std::min(end, i + kBlock);
            uint32_t bad = 0;
            for (size_t j = i; j < last; ++j) bad |= is_bad(x[j]);
            if (!bad) continue;
            const std::lock_guard lock(mutex);
            first = std::min(first, size_t(std::find_if(x + i, x + last, is_bad) - x));
            return;
        }
    });
    return first < n ? int64_t(first) : -1;
}

}  // namespace

void CpuBackend::sgd(float* w, const float* g, float* v, size_t n, const StepState* step,
                     float momentum, float weight_decay, bool nesterov) {
    const float scale = step->scale, lr = step->lr;
    if (scale == 0) return;
    // Both forms are w −= lr·(a·g' + b·v).
    const float a = nesterov ? 1.0f : 0.0f, b = nesterov ? momentum : 1.0f;
    cpu_.pool.for_ranges(n, kGrain, [&](size_t begin, size_t end) {
#pragma GCC ivdep
        for (size_t i = begin; i < end; ++i) {
            const float grad = scale * g[i] + weight_decay * w[i];
            v[i] = momentum * v[i] + grad;
            w[i] -= lr * (a * grad + b * v[i]);
        }
    });
}

void CpuBackend::adamw(float* w, const float* g, float* m, float* v, size_t n,
                       const StepState* step, float beta1, float beta2, float eps,
                       float weight_decay) {
    const float scale = step->scale, keep = 1 - step->lr * weight_decay;
    const float rate = step->lr / step->bias1, root = 1 / std::sqrt(step->bias2);
    if (scale == 0) return;
    cpu_.pool.for_ranges(n, kGrain, [&](size_t begin, size_t end) {
#pragma GCC ivdep
        for (size_t i = begin; i < end; ++i) {
            const float grad = scale * g[i];
            m[i] = beta1 * m[i] + (1 - beta1) * grad;
            v[i] = beta2 * v[i] + (1 - beta2) * grad * grad;
            w[i] = keep * w[i] - rate * m[i] / (std::sqrt(v[i]) * root + eps);
        }
    });
}

void CpuBackend::moving_mean(float* w, const float* sums, size_t n, const StepState* step,
                             float part) {
    const float scale = step->scale;
    if (scale == 0) return;
    cpu_.pool.for_ranges(n, kGrain, [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i) w[i] = (1 - part) * w[i] + part * scale * sums[i];
    });
}

void CpuBackend::axpby(float a, const float* x, float b, float* y, size_t n) {
    cpu_.pool.for_ranges(n, kGrain, [&](size_t begin, size_t end) {
        if (b == 0)
            for (size_t i = begin; i < end; ++i) y[i] = a * x[i];
        else
            for (size_t i = begin; i < end; ++i) y[i] = a * x[i] + b * y[i];
    });
}

void CpuBackend::check_finite(const float* x, size_t n, const float* images, StepState* step) {
    step->first_bad = first_nonfinite(x, n, cpu_.pool);
    step->scale = step->first_bad < 0 && *images > 0 ? 1 / *images : 0.0f;
}

}  // namespace convoy
