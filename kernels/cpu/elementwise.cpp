// elementwise.cpp — one number in, one out: bound by memory. Dropout draws its numbers anew in
// both passes, which costs less than keeping a mask.
#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/shapes.h"
#include "src/base/random.h"

namespace convoy {

namespace {

constexpr size_t kGrain = 16384;  // floats: 64 KB a thread at least
constexpr int kBlocks = 16;       // Philox blocks drawn side by side, one a vector lane

// Words [0, 4·kBlocks) of the blocks first, first + 1, …: word j of block i at words[4·i + j].
// Each number is held in 64 bits, a vector of them at a time: of plain loops the compiler made no
// vectors.
void draw_blocks(uint32_t first, const std::array<uint32_t, 3>& counter, uint64_t seed,
                 uint32_t* words) {
    constexpr int kLanes = 8;
    typedef uint64_t Lanes __attribute__((vector_size(kLanes * 8)));
    constexpr uint64_t kLow = 0xFFFFFFFF;
    for (int block = 0; block < kBlocks; block += kLanes) {
        Lanes c0, c1 = Lanes{} + counter[0], c2 = Lanes{} + counter[1], c3 = Lanes{} + counter[2];
        for (int i = 0; i < kLanes; ++i) c0[i] = uint32_t(first + block + i);
        uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
        for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
            const Lanes a = 0xD2511F53ull * c0, b = 0xCD9E8D57ull * c2;
            c0 = (b >> 32) ^ c1 ^ uint64_t(k0);
            c1 = b & kLow;
            c2 = (a >> 32) ^ c3 ^ uint64_t(k1);
            c3 = a & kLow;
        }
        uint32_t* to = words + 4 * block;
        for (int i = 0; i < kLanes; ++i) {
            to[4 * i] = uint32_t(c0[i]), to[4 * i + 1] = uint32_t(c1[i]);
            to[4 * i + 2] = uint32_t(c2[i]), to[4 * i + 3] = uint32_t(c3[i]);
        }
    }
}

// A function of its own, with no branch: half of the branches would be guessed wrong.
void keep_some(float* v, const uint32_t* words, size_t count, float p, float scale) {
#pragma GCC ivdep
    for (size_t i = 0; i < count; ++i) {
        const float scaled = v[i] * scale;
        v[i] = float(int32_t(words[i] >> 8)) * 0x1p-24f >= p ? scaled : 0.0f;
    }
}

}  // namespace

void CpuBackend::relu(Tensor x) {
    float* v = x.floats();
    cpu_.pool.for_ranges(x.elems(), kGrain, [&](size_t begin, size_t end) {
        // This way round a NaN stays one, and is noticed.
        for (size_t i = begin; i < end; ++i) v[i] = v[i] < 0 ? 0.0f : v[i];
    });
}

void CpuBackend::relu_grad(Tensor y, Tensor dy) {
    check_same("y", y, "dy", dy);
    const float* from = y.floats();
    float* to = dy.floats();
    cpu_.pool.for_ranges(dy.elems(), kGrain, [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i) to[i] = from[i] <= 0 ? 0.0f : to[i];
    });
}

void CpuBackend::add(Tensor x, Tensor y) {
    check_same("x", x, "y", y);
    const float* from = y.floats();
    float* to = x.floats();
    cpu_.pool.for_ranges(x.elems(), kGrain, [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i) to[i] += from[i];
    });
}

void CpuBackend::dropout(Tensor x, float p, const Draws& draws,
                         std::span<const uint64_t> sample_ids, uint16_t purpose) {
    check_dropout(x, p, sample_ids);
    constexpr size_t kChunk = 4 * kBlocks;
    float* all = x.floats();
    const size_t row = x.shape().row_elems(), chunks = (row + kChunk - 1) / kChunk;
    cpu_.pool.for_ranges(x.N * chunks, 64, [&](size_t begin, size_t end) {
        for (size_t task = begin; task < end; ++task) {
            const size_t n = task / chunks, first = task % chunks * kChunk;
            const uint64_t id = sample_ids[n];
            uint32_t words[kChunk];
            // The counter of Random (src/base/random.h): block, index low, epoch, purpose and
            // index high. A sample has fewer than 2^34 elements, so the block fits.
            draw_blocks(uint32_t(first / 4),
                        {uint32_t(id), draws.epoch, uint32_t(purpose) | uint32_t(id >> 32) << 16},
                        draws.seed, words);
            float* v = all + n * row + first;
            const size_t count = std::min(kChunk, row - first);
            keep_some(v, words, count, p, 1 / (1 - p));
        }
    });
}

}  // namespace convoy
