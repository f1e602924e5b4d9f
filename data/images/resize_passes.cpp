// resize_passes.cpp — weighted sums of 8-bit pixels.
//
// AVX2 multiplies 32-bit integers slowly (vpmulld: two operations for eight products) and 16-bit
// integers fast (vpmaddwd: one operation for sixteen products and eight sums). So a weight of 22
// bits is split into 7 and 15 bits: Σ pixel·weight = 2^15 · Σ pixel·high + Σ pixel·low. Sums may
// wrap on the way, but the total is below 2^31, so it is right modulo 2^32.
#include "data/images/resize.h"

#include <algorithm>
#include <cstring>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace convoy {

static constexpr uint32_t kHalf = 1u << (kWeightBits - 1);

template <int kC>
static void filter_row(const uint8_t* in, const Taps& taps, bool flip, uint8_t* out) {
    const size_t W = taps.first.size();
    for (size_t q = 0; q < W; ++q) {
        uint32_t sums[] = {kHalf, kHalf, kHalf};
        const uint8_t* pixel = in + size_t(taps.first[q]) * kC;
        for (int k = 0; k < taps.count[q]; ++k, pixel += kC) {
            const uint32_t weight = taps.weight(q, k);
            for (int c = 0; c < kC; ++c) sums[c] += pixel[c] * weight;
        }
        for (int c = 0; c < kC; ++c)
            out[(flip ? W - 1 - q : q) * kC + size_t(c)] =
                uint8_t(std::min(sums[c] >> kWeightBits, 255u));
    }
}

void portable_across(const uint8_t* in, size_t in_bytes, int rows, int C, const Taps& taps,
                     bool flip, uint8_t* out, size_t out_bytes) {
    for (int r = 0; r < rows; ++r, in += in_bytes, out += out_bytes)
        (C == 1 ? filter_row<1> : filter_row<3>)(in, taps, flip, out);
}

void portable_down(const uint8_t* in, size_t in_bytes, int skipped, size_t n, const Taps& taps,
                   size_t p, const float* scale, const float* bias, float* out) {
    in += size_t(taps.first[p] - skipped) * in_bytes;
    for (size_t i = 0; i < n; ++i) {
        uint32_t sum = kHalf;
        for (int k = 0; k < taps.count[p]; ++k)
            sum += in[size_t(k) * in_bytes + i] * taps.weight(p, k);
        out[i] = float(std::min(sum >> kWeightBits, 255u)) * scale[i] + bias[i];
    }
}

#ifdef __AVX2__

// 2^15 · high + low
static __m256i joined(__m256i high, __m256i low) {
    return _mm256_add_epi32(_mm256_slli_epi32(high, kLowBits), low);
}
// Sums as pixels in 32 bits each; the packing that follows cuts them at 255.
static __m256i rounded(__m256i sum) {
    return _mm256_srli_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(int(kHalf))), kWeightBits);
}

static __m256i four_weights(
    const int16_t* weights) {  // w0 w1 for each channel, then w2 w3 for each
    int64_t four;
    std::memcpy(&four, weights, 8);
    const __m256i spread = _mm256_setr_epi8(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3,  //
                                            4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7);
    return _mm256_shuffle_epi8(_mm256_set1_epi64x(four), spread);
}

// Four rows at once, so that weights are loaded once for all of them. Four taps (12 bytes) a
// step: both halves of a register get the same bytes; the lower takes taps 0 and 1 out of them,
// the upper 2 and 3, as 16-bit words  r0 r1  g0 g1  b0 b1  0 0.
static void filter_four_rows(const uint8_t* const rows[4], const Taps& taps, bool flip,
                             uint8_t* const out[4]) {
    const __m256i take =
        _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1,  //
                         6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
    const size_t W = taps.first.size();
    for (size_t place = 0; place < W; ++place) {
        const size_t q = flip ? W - 1 - place : place;
        __m256i high[4], low[4];
        for (int r = 0; r < 4; ++r) high[r] = low[r] = _mm256_setzero_si256();
        size_t offset = size_t(taps.first[q]) * 3;
        const size_t begin = q * taps.stride, end = begin + size_t(taps.count[q]);
        for (size_t k = begin; k < end; k += 4, offset += 12) {
            const __m256i w_high = four_weights(taps.high.data() + k);
            const __m256i w_low = four_weights(taps.low.data() + k);
            for (int r = 0; r < 4; ++r) {
                const __m128i bytes =
                    _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[r] + offset));
                const __m256i words = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), take);
                high[r] = _mm256_add_epi32(high[r], _mm256_madd_epi16(words, w_high));
                low[r] = _mm256_add_epi32(low[r], _mm256_madd_epi16(words, w_low));
            }
        }
        // Lower half + upper half of two rows side by side: row a in the lower, b in the upper.
        const auto two_pixels = [&](int a, int b) {
            const __m256i x = joined(high[a], low[a]), y = joined(high[b], low[b]);
            return rounded(_mm256_add_epi32(_mm256_permute2x128_si256(x, y, 0x20),
                                            _mm256_permute2x128_si256(x, y, 0x31)));
        };
        const __m256i words = _mm256_packus_epi32(two_pixels(0, 2), two_pixels(1, 3));
        const __m256i bytes = _mm256_packus_epi16(words, words);
        const __m128i rows01 = _mm256_castsi256_si128(bytes);
        const __m128i rows23 = _mm256_extracti128_si256(bytes, 1);
        // Stores of four bytes: the fourth is the next place's, or padding after the row.
        const int pixels[4] = {_mm_cvtsi128_si32(rows01), _mm_extract_epi32(rows01, 1),
                               _mm_cvtsi128_si32(rows23), _mm_extract_epi32(rows23, 1)};
        for (int r = 0; r < 4; ++r) std::memcpy(out[r] + place * 3, &pixels[r], 4);
    }
}

// Eight bytes of two rows, interleaved and widened: a0 b0 a1 b1 …, 16 bits each.
static __m256i pairs(const uint8_t* a, const uint8_t* b) {
    const __m128i bytes = _mm_unpacklo_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(a)),
                                            _mm_loadl_epi64(reinterpret_cast<const __m128i*>(b)));
    return _mm256_cvtepu8_epi16(bytes);
}

static void filter_columns(const uint8_t* in, size_t in_bytes, int skipped, size_t n,
                           const Taps& taps, size_t p, const float* scale, const float* bias,
                           float* out) {
    in += size_t(taps.first[p] - skipped) * in_bytes;
    const size_t count = size_t(taps.count[p]);
    const int16_t* high_weights = taps.high.data() + p * taps.stride;
    const int16_t* low_weights = taps.low.data() + p * taps.stride;
    const auto two = [](const int16_t* weights) {
        int32_t pair;
        std::memcpy(&pair, weights, 4);
        return _mm256_set1_epi32(pair);
    };
    for (size_t i = 0; i < n; i += 8) {
        i = std::min(i, n - 8);  // the last step goes back over a few: the same values once more
        __m256i high = _mm256_setzero_si256(), low = high;
        for (size_t k = 0; k < count; k += 2) {
            // A last odd row is paired with itself: its second weight is 0.
            const uint8_t* a = in + k * in_bytes + i;
            const __m256i words = pairs(a, k + 1 < count ? a + in_bytes : a);
            high = _mm256_add_epi32(high, _mm256_madd_epi16(words, two(high_weights + k)));
            low = _mm256_add_epi32(low, _mm256_madd_epi16(words, two(low_weights + k)));
        }
        const __m256i pixel = _mm256_min_epi32(rounded(joined(high, low)), _mm256_set1_epi32(255));
        const __m256 product = _mm256_mul_ps(_mm256_cvtepi32_ps(pixel), _mm256_loadu_ps(scale + i));
        _mm256_storeu_ps(out + i, _mm256_add_ps(product, _mm256_loadu_ps(bias + i)));
    }
}
#endif

void filter_across(const uint8_t* in, size_t in_bytes, int rows, int C, const Taps& taps, bool flip,
                   uint8_t* out, size_t out_bytes) {
#ifdef __AVX2__
    for (int begin = 0; begin < rows && C == 3; begin += 4) {
        const uint8_t* from[4];
        uint8_t* to[4];
        for (int r = 0; r < 4; ++r) {
            const size_t row = size_t(std::min(begin + r, rows - 1));  // the last one repeated
            from[r] = in + row * in_bytes, to[r] = out + row * out_bytes;
        }
        filter_four_rows(from, taps, flip, to);
    }
    if (C == 3) return;
#endif
    portable_across(in, in_bytes, rows, C, taps, flip, out, out_bytes);
}

void filter_down(const uint8_t* in, size_t in_bytes, int skipped, size_t n, const Taps& taps,
                 size_t p, const float* scale, const float* bias, float* out) {
#ifdef __AVX2__
    if (n >= 8) return filter_columns(in, in_bytes, skipped, n, taps, p, scale, bias, out);
#endif
    portable_down(in, in_bytes, skipped, n, taps, p, scale, bias, out);
}

}  // namespace convoy
