// optimizer.cpp — one pass over the arenas, bound by memory (SGD: 12 bytes read, 8 written).
#include <algorithm>
#include <bit>
#include <cmath>
#include <mutex>
#include <numeric>

#include "kernels/cpu/cpu_backend.h"

namespace convoy {

static bool is_bad(float v) {  // infinite or NaN: all exponent bits are set
    return (std::bit_cast<uint32_t>(v) & 0x7F800000u) == 0x7F800000u;
}

// Calls update(segment, begin, end) for ranges of n floats that are in a segment.
template <class Update>
static void for_segments(const Segments& segments, size_t n, ThreadPool& pool,
                         const Update& update) {
    const auto place = [&](size_t i) {
        return std::min(std::max(i, segments.first) - segments.first, n);
    };
    for (const Segment& segment : segments.list) {
        const size_t first = place(segment.begin);
        pool.for_ranges(place(segment.end) - first, kGrain, [&](size_t begin, size_t end) {
            update(segment, first + begin, first + end);
        });
    }
}

void CpuBackend::sgd(float* w, const float* g, float* v, size_t n, const Segments& segments,
                     const StepState* step, float momentum, bool nesterov) {
    const float scale = step->scale * step->clip;
    if (step->scale == 0) return;
    // Both forms are w −= lr·(a·g' + b·v).
    const float a = nesterov ? 1.0f : 0.0f, b = nesterov ? momentum : 1.0f;
    for_segments(segments, n, cpu_.pool, [&](const Segment& segment, size_t begin, size_t end) {
        const float lr = step->lr * segment.rate, weight_decay = segment.weight_decay;
#pragma GCC ivdep
        for (size_t i = begin; i < end; ++i) {
            const float grad = scale * g[i] + weight_decay * w[i];
            v[i] = momentum * v[i] + grad;
            w[i] -= lr * (a * grad + b * v[i]);
        }
    });
}

void CpuBackend::adamw(float* w, const float* g, float* m, float* v, size_t n,
                       const Segments& segments, const StepState* step, float beta1, float beta2,
                       float eps) {
    const float scale = step->scale * step->clip, root = 1 / std::sqrt(step->bias2);
    if (step->scale == 0) return;
    for_segments(segments, n, cpu_.pool, [&](const Segment& segment, size_t begin, size_t end) {
        const float lr = step->lr * segment.rate;
        const float keep = 1 - lr * segment.weight_decay, pace = lr / step->bias1;
#pragma GCC ivdep
        for (size_t i = begin; i < end; ++i) {
            const float grad = scale * g[i];
            m[i] = beta1 * m[i] + (1 - beta1) * grad;
            v[i] = beta2 * v[i] + (1 - beta2) * grad * grad;
            w[i] = keep * w[i] - pace * m[i] / (std::sqrt(v[i]) * root + eps);
        }
    });
}

void CpuBackend::average(float* mean, const float* w, size_t n, const StepState* step) {
    const float part = step->part;
    if (step->scale == 0) return;
    cpu_.pool.for_ranges(n, kGrain, [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i) mean[i] = (1 - part) * mean[i] + part * w[i];
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
    constexpr size_t kBlock = 4096;  // checked without branches
    std::mutex mutex;
    size_t first = n;
    cpu_.pool.for_ranges(n, kGrain, [&](size_t begin, size_t end) {
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
    step->first_bad = first < n ? int64_t(first) : -1;
    step->scale = step->first_bad < 0 && *images > 0 ? 1 / *images : 0.0f;
}

// Sums blocks of a fixed size, each in 16 chains, then adds the blocks in order.
void CpuBackend::sum_squares(const float* x, size_t n, float* sum) {
    constexpr size_t kBlock = 4096, kChains = 16;
    const size_t blocks = (n + kBlock - 1) / kBlock;
    float* sums = cpu_.shared.get(kSlotSums, blocks);
    cpu_.pool.for_each(int(blocks), [&](int block, int) {
        const size_t begin = size_t(block) * kBlock, end = std::min(n, begin + kBlock);
        float chains[kChains] = {};
        size_t i = begin;
        for (; i + kChains <= end; i += kChains)
            for (size_t c = 0; c < kChains; ++c) chains[c] += x[i + c] * x[i + c];
        for (; i < end; ++i) chains[i % kChains] += x[i] * x[i];
        sums[block] = std::accumulate(chains, chains + kChains, 0.0f);
    });
    *sum = float(std::accumulate(sums, sums + blocks, 0.0));
}

void CpuBackend::clip(const float* squares, float limit, StepState* step) {
    step->norm = step->scale * std::sqrt(*squares);
    step->clip = std::min(1.0f, limit / (step->norm + 1e-6f));
}

}  // namespace convoy
