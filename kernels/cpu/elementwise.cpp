// elementwise.cpp — one number in, one number out: bound by memory. Dropout draws the same random
// numbers again in the backward pass, which costs less than storing a mask.
#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/elements.h"
#include "kernels/shapes.h"
#include "src/base/random.h"

namespace convoy {

static constexpr int kBlocks = 64;  // Philox blocks drawn in parallel, one per vector lane

// A separate function without branches, half of which would be mispredicted.
template <class T>
static void keep_some(T* v, const uint32_t* words, size_t count, float p, float scale) {
#pragma GCC ivdep
    for (size_t i = 0; i < count; ++i) {
        const float scaled = v[i] * scale;
        v[i] = float(int32_t(words[i] >> 8)) * 0x1p-24f >= p ? scaled : 0.0f;
    }
}

// Calls f(passes, x, y, count) on parts of two tensors of the same elements.
template <class F>
static void map(Cpu& cpu, Tensor x, Tensor y, F&& f) {
    with_type(x.type, [&]<class T>(T) {
        T *to = elements<T>(x), *other = elements<T>(y);
        cpu.pool.for_ranges(x.elems(), kGrain, [&](size_t begin, size_t end) {
            f(cpu.micro.passes(to), to + begin, other + begin, end - begin);
        });
    });
}

void CpuBackend::activate(Tensor x, Activation f) {
    map(cpu_, x, x, [f](auto& passes, auto* v, auto*, size_t n) { passes.activate(v, n, f); });
}

void CpuBackend::activate_grad(Tensor of, Tensor dy, Activation f) {
    check_same("y", of, "dy", dy);
    map(cpu_, dy, of,
        [f](auto& passes, auto* to, auto* y, size_t n) { passes.activate_grad(y, to, n, f); });
}

void CpuBackend::add(Tensor x, Tensor y) {
    check_same("x", x, "y", y);
    map(cpu_, x, y, [](auto& passes, auto* to, auto* from, size_t n) { passes.add(to, from, n); });
}

void CpuBackend::copy_channels(Tensor to, Tensor from, int first, bool add) {
    check_channels(to, from, first);
    const int channels = std::min(to.C, from.C);
    const size_t rows = channels ? to.elems() / size_t(to.C) : 0;
    with_type(to.type, [&]<class T>(T) {
        T* out = elements<T>(to) + (to.C > channels ? first : 0);
        const T* in = elements<T>(from) + (from.C > channels ? first : 0);
        cpu_.pool.for_ranges(
            rows, kGrain / size_t(channels + 1) + 1, [&](size_t begin, size_t end) {
                if (channels > 1 || add)
                    return cpu_.micro.passes(in).copy_rows(out + begin * to.C, to.C,
                                                           in + begin * from.C, from.C,
                                                           int64_t(end - begin), channels, add);
                for (size_t i = begin; i < end; ++i)  // of shuffled branches
                    out[i * size_t(to.C)] = in[i * size_t(from.C)];
            });
    });
}

void CpuBackend::scale_channels(Tensor x, Tensor s, Tensor y) {
    check_scales(x, s, "y", y);
    const size_t pixels = size_t(x.H) * x.W, C = x.C;
    with_type(x.type, [&]<class T>(T) {
        const T *from = elements<T>(x), *scales = elements<T>(s);
        T* to = elements<T>(y);
        cpu_.pool.for_ranges(x.N * pixels, kGrain / (C + 1) + 1, [&](size_t begin, size_t end) {
            for (size_t pixel = begin; pixel < end; ++pixel)
                for (size_t c = 0, n = pixel / pixels; c < C; ++c)
                    to[pixel * C + c] = float(from[pixel * C + c]) * float(scales[n * C + c]);
        });
    });
}

void CpuBackend::scale_channels_grad(Tensor x, Tensor s, Tensor dy, Tensor dx, Tensor ds) {
    check_scales(x, s, "dy", dy);
    check_scales(x, ds, "dx", dx);
    constexpr int kChannels = 64;  // of a task
    const int stripes = (x.C + kChannels - 1) / kChannels;
    const size_t pixels = size_t(x.H) * x.W, C = x.C;
    with_type(x.type, [&]<class T>(T) {
        cpu_.pool.for_each(x.N * stripes, [&](int task, int) {
            const size_t n = task / stripes, first = size_t(task % stripes) * kChannels;
            const size_t at = n * C + first, count = std::min<size_t>(kChannels, C - first);
            float sums[kChannels] = {}, scales[kChannels];
            std::copy_n(elements<T>(s) + at, count, scales);
            for (size_t pixel = 0; pixel < pixels; ++pixel) {
                const size_t skip = (n * pixels + pixel) * C + first;
                const T *v = elements<T>(x) + skip, *grad = elements<T>(dy) + skip;
                T* to = elements<T>(dx) + skip;
#pragma GCC ivdep
                for (size_t c = 0; c < count; ++c) {
                    const float g = grad[c];
                    sums[c] += g * float(v[c]);
                    to[c] = g * scales[c];
                }
            }
            std::copy_n(sums, count, elements<T>(ds) + at);
        });
    });
}

void CpuBackend::dropout(Tensor x, float p, const Draws& draws,
                         std::span<const uint64_t> sample_ids, uint16_t purpose) {
    check_dropout(x, p, sample_ids);
    constexpr size_t kChunk = 4 * kBlocks;
    const size_t row = x.shape().row_elems(), chunks = (row + kChunk - 1) / kChunk;
    cpu_.pool.for_ranges(x.N * chunks, 16, [&](size_t begin, size_t end) {
        for (size_t task = begin; task < end; ++task) {
            const size_t n = task / chunks, first = task % chunks * kChunk;
            const uint64_t id = sample_ids[n];
            uint32_t words[kChunk], blocks[4][kBlocks];
            // The counter of Random. Samples have < 2^34 elements: 32 bits for the block.
            for (int i = 0; i < kBlocks; ++i) {
                blocks[0][i] = uint32_t(first / 4) + uint32_t(i), blocks[1][i] = uint32_t(id);
                blocks[2][i] = draws.epoch;
                blocks[3][i] = uint32_t(purpose) | uint32_t(id >> 32) << 16;
            }
            philox4x32(blocks, draws.seed);
            for (int i = 0; i < kBlocks; ++i)
                for (int j = 0; j < 4; ++j) words[4 * i + j] = blocks[j][i];
            const size_t count = std::min(kChunk, row - first);
            with_type(x.type, [&]<class T>(T) {
                T* v = static_cast<T*>(x.data) + n * row + first;
                keep_some(v, words, count, p, 1 / (1 - p));
            });
        }
    });
}

}  // namespace convoy
