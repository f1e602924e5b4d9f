// start_values.cpp — Philox and Box–Muller, 64 blocks of four draws at a time. VGG16 starts from
// 138 million normal numbers, which take seconds with the library's log and cosine. Here every step
// is a loop over lanes that the compiler vectorises, with short series as exact as a float.
#include <algorithm>
#include <bit>
#include <cmath>

#include "src/base/parallel.h"
#include "src/base/random.h"
#include "src/model/params.h"

namespace convoy {
namespace {

constexpr int kLanes = 64;

// In [0, 1), exactly Random::uniform.
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

// Cosine and sine of 2π·v, v in [0, 1): quarter turns, then Taylor series for |r| ≤ π/4, to 3e-8.
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

// out[j][i] = element j of block first + i. Two draws give two normal numbers (Box, Muller 1958).
void draw_lanes(const Init& init, uint64_t key, uint64_t first, float (&out)[4][kLanes]) {
    uint32_t words[4][kLanes];
    for (int i = 0; i < kLanes; ++i) {
        const uint64_t block = first + uint64_t(i);
        words[0][i] = 0, words[1][i] = uint32_t(block);
        words[2][i] = 0, words[3][i] = uint32_t(kInit) | uint32_t(block >> 32) << 16;
    }
    philox4x32(words, key);
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
        float lanes[4][kLanes];
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
    constexpr size_t kPart = 1 << 16;  // a multiple of 4; fewer do not need another thread
    for_each_parallel((n + kPart - 1) / kPart, threads, [&](size_t i) {
        draw(init, key, i * kPart, std::min((i + 1) * kPart, n), out);
    });
}

}  // namespace convoy
