// elementwise.cpp — one number in, one number out: bound by memory. Dropout draws the same random
// numbers again in the backward pass, which costs less than storing a mask.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/elements.h"
#include "kernels/shapes.h"
#include "src/base/random.h"

namespace convoy {

namespace {

constexpr int kBlocks = 64;  // Philox blocks drawn in parallel, one per vector lane

// A separate function without branches, half of which would be mispredicted.
template <class T>
void keep_some(T* v, const uint32_t* words, size_t count, float p, float scale) {
#pragma GCC ivdep
    for (size_t i = 0; i < count; ++i) {
        const float scaled = v[i] * scale;
        v[i] = float(int32_t(words[i] >> 8)) * 0x1p-24f >= p ? scaled : 0.0f;
    }
}

// Calls f with the kind as a compile-time constant. A relu6 is a relu with an upper bound.
template <class F>
void with_kind(Rectifier rectifier, F&& f) {
    using Kind = Rectifier::Kind;
    switch (rectifier.kind) {
        case Kind::kRelu:
        case Kind::kRelu6: return f(std::integral_constant<Kind, Kind::kRelu>());
        case Kind::kLeakyRelu: return f(std::integral_constant<Kind, Kind::kLeakyRelu>());
        case Kind::kElu: return f(std::integral_constant<Kind, Kind::kElu>());
    }
}
float end_of(Rectifier f) { return f.kind == Rectifier::kRelu6 ? 6 : INFINITY; }

template <Rectifier::Kind kKind>
float rectified(float x, float slope, float end) {
    if constexpr (kKind == Rectifier::kLeakyRelu) return x < 0 ? slope * x : x;
    if constexpr (kKind == Rectifier::kElu) return x < 0 ? slope * std::expm1(x) : x;
    x = x > end ? end : x;
    return x < 0 ? 0.0f : x;  // max() would turn a NaN into 0 and hide it
}
template <Rectifier::Kind kKind>
float rectified_grad(float y, float dy, float slope, float end) {
    if constexpr (kKind == Rectifier::kLeakyRelu) return y <= 0 ? slope * dy : dy;
    if constexpr (kKind == Rectifier::kElu) return y <= 0 ? (y + slope) * dy : dy;
    dy = y >= end ? 0.0f : dy;
    return y <= 0 ? 0.0f : dy;
}

}  // namespace

void CpuBackend::relu(Tensor x, Rectifier f) {
    const float end = end_of(f);
    with_kind(f, [&](auto kind) {
        with_type(x.type, [&]<class T>(T) {
            T* v = elements<T>(x);
            cpu_.pool.for_ranges(x.elems(), kGrain, [&](size_t begin, size_t stop) {
                for (size_t i = begin; i < stop; ++i) v[i] = rectified<kind()>(v[i], f.slope, end);
            });
        });
    });
}

void CpuBackend::relu_grad(Tensor y, Tensor dy, Rectifier f) {
    check_same("y", y, "dy", dy);
    const float end = end_of(f);
    with_kind(f, [&](auto kind) {
        with_type(dy.type, [&]<class T>(T) {
            const T* from = elements<T>(y);
            T* to = elements<T>(dy);
            cpu_.pool.for_ranges(dy.elems(), kGrain, [&](size_t begin, size_t stop) {
                for (size_t i = begin; i < stop; ++i) {
                    const float grad = to[i];  // an unconditional load: the loop is vectorised
                    to[i] = rectified_grad<kind()>(from[i], grad, f.slope, end);
                }
            });
        });
    });
}

void CpuBackend::add(Tensor x, Tensor y) {
    check_same("x", x, "y", y);
    with_type(x.type, [&]<class T>(T) {
        const T* from = elements<T>(y);
        T* to = elements<T>(x);
        cpu_.pool.for_ranges(x.elems(), kGrain, [&](size_t begin, size_t end) {
            cpu_.micro.passes(from).add(to + begin, from + begin, end - begin);
        });
    });
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
                cpu_.micro.passes(in).copy_rows(out + begin * to.C, to.C, in + begin * from.C,
                                                from.C, int64_t(end - begin), channels, add);
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
