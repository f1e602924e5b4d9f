// start_values.cpp — Philox and Box–Muller, 64 blocks of four draws at a time.
//
// A model like VGG16 starts from 138 million normal numbers: one by one, with the library's log and
// cosine, they take seconds. Here every step is a loop over lanes without branches, which the
// compiler turns into vectors; log, sine and cosine are short series, good to a float.
#include "src/model/start_values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <thread>
#include <vector>

#include "src/base/check.h"
#include "src/base/random.h"

namespace convoy {
namespace {

constexpr int kLanes = 64;
using Words = uint32_t[kLanes];
using Floats = float[kLanes];

// The four words of blocks first … first + 63, as philox4x32 in base/random.h makes them one by
// one: counter (0, block low, 0, kInit | block high << 16).
void philox(uint64_t key, uint64_t first, Words (&c)[4]) {
    for (int i = 0; i < kLanes; ++i) {
        const uint64_t block = first + uint64_t(i);
        c[0][i] = 0, c[1][i] = uint32_t(block);
        c[2][i] = 0, c[3][i] = uint32_t(kInit) | uint32_t(block >> 32) << 16;
    }
    uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
    for (int round = 0; round < 10; ++round) {
        for (int i = 0; i < kLanes; ++i) {
            const uint64_t a = uint64_t(0xD2511F53u) * c[0][i];
            const uint64_t b = uint64_t(0xCD9E8D57u) * c[2][i];
            const uint32_t x = uint32_t(b >> 32) ^ c[1][i] ^ k0;
            const uint32_t y = uint32_t(a >> 32) ^ c[3][i] ^ k1;
            c[0][i] = x, c[1][i] = uint32_t(b), c[2][i] = y, c[3][i] = uint32_t(a);
        }
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
}

// In [0, 1), exact: Random::uniform.
float uniform(uint32_t bits) { return float(int32_t(bits >> 8)) * 0x1p-24f; }

// ln x for a normal x in (0, 1]. x = m·2^e with m in [0.7, 1.41); ln m = 2·artanh s by its series,
// s = (m − 1)/(m + 1), |s| < 0.18; the first term left out is below 2·0.18^11/11 = 1e-9.
float log_of(float x) {
    const int32_t bits = std::bit_cast<int32_t>(x);
    const int32_t e = (bits - 0x3F333333) >> 23;  // 0x3F333333 is 0.7
    const float m = std::bit_cast<float>(bits - (e << 23));
    const float s = (m - 1) / (m + 1), z = s * s;
    const float series = 1 + z * (1 / 3.f + z * (1 / 5.f + z * (1 / 7.f + z * (1 / 9.f))));
    return float(e) * float(M_LN2) + 2 * s * series;
}

// Cosine and sine of 2π·v, v in [0, 1). Quarter turns are taken off, so that |r| ≤ π/4, where the
// Taylor series to r^9 are within 3e-8.
void cos_sin_turns(float v, float& cosine, float& sine) {
    const float quarters = 4 * v;
    const int32_t q = int32_t(quarters + 0.5f);
    const float r = (quarters - float(q)) * float(M_PI / 2), z = r * r;
    const float s =
        r * (1 + z * (-1 / 6.f + z * (1 / 120.f + z * (-1 / 5040.f + z * (1 / 362880.f)))));
    const float c = 1 + z * (-1 / 2.f + z * (1 / 24.f + z * (-1 / 720.f + z * (1 / 40320.f))));
    const float x = q & 1 ? s : c, y = q & 1 ? c : s;
    cosine = (q + 1) & 2 ? -x : x;
    sine = q & 2 ? -y : y;
}

// All four draws of a block are used; a pair of them gives two normals (Box and Muller 1958).
void draw_lanes(const Init& init, uint64_t key, uint64_t first, Floats (&out)[4]) {
    Words words[4];
    philox(key, first, words);
    if (init.kind == Init::kUniform) {
        for (int j = 0; j < 4; ++j)
            for (int i = 0; i < kLanes; ++i)
                out[j][i] = (2 * uniform(words[j][i]) - 1) * init.value;
        return;
    }
    for (int j = 0; j < 4; j += 2)
        for (int i = 0; i < kLanes; ++i) {
            // 1 − u is in (0, 1], so the logarithm is finite.
            const float radius = init.value * std::sqrt(-2 * log_of(1 - uniform(words[j][i])));
            float cosine, sine;
            cos_sin_turns(uniform(words[j + 1][i]), cosine, sine);
            out[j][i] = radius * cosine, out[j + 1][i] = radius * sine;
        }
}

// Elements [first, last), first a multiple of 4.
void draw(const Init& init, uint64_t key, size_t first, size_t last, float* out) {
    for (size_t at = first; at < last; at += 4 * kLanes) {
        Floats lanes[4];
        draw_lanes(init, key, at / 4, lanes);
        const size_t n = std::min<size_t>(4 * kLanes, last - at);
        if (n == 4 * kLanes)
            for (size_t i = 0; i < kLanes; ++i)
                for (size_t j = 0; j < 4; ++j) out[at + 4 * i + j] = lanes[j][i];
        else
            for (size_t i = 0; i < n; ++i) out[at + i] = lanes[i % 4][i / 4];
    }
}

}  // namespace

void draw_start_values(const Init& init, uint64_t key, size_t n, float* out, int threads) {
    ENSURE(init.kind != Init::kConstant, "a constant is not drawn");
    constexpr size_t kSmallest = 1 << 16;  // fewer are not worth a thread
    const size_t parts = std::clamp<size_t>(n / kSmallest, 1, size_t(std::max(threads, 1)));
    const size_t share = (n / parts + 3) / 4 * 4;
    std::vector<std::thread> pool;
    for (size_t part = 1; part < parts; ++part)
        pool.emplace_back([&, part] {
            draw(init, key, std::min(part * share, n),
                 part + 1 == parts ? n : std::min((part + 1) * share, n), out);
        });
    draw(init, key, 0, parts == 1 ? n : share, out);
    for (std::thread& thread : pool) thread.join();
}

}  // namespace convoy
