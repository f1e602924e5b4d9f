// resize_passes_avx512.cpp — the inner loops with AVX-512's byte permutations and byte products.
//
// vpdpbusd adds four products of unsigned and signed bytes to each of 16 sums. So a weight of 22
// bits is split into three signed bytes, w = 2^16·a + 2^8·b + c, and Σ pixel·w = 2^16·Σ pixel·a +
// 2^8·Σ pixel·b + Σ pixel·c, modulo 2^32. vpermb fetches the four pixels of each sum from any of
// 64 bytes of a row. 16 sums are 16 bytes of the result, whatever pixels they belong to.
#include "data/images/resize.h"

#include <algorithm>

#ifdef __AVX512VBMI__
#include <immintrin.h>

namespace convoy {
namespace {

constexpr int kGroups = 3;        // of four taps: more are left to AVX2
constexpr int kRowsAtATime = 32;  // of about 1 KB: they stay in the L1 cache
constexpr uint32_t kEach = 0x01010101;

// The three bytes of four weights each, as vpdpbusd takes them: four bytes in 32 bits.
struct Digits {
    uint32_t a = 0, b = 0, c = 0;
    void set(int k, uint32_t weight) {
        const auto digit = [&](uint32_t& to) {
            const int8_t low = int8_t(weight);
            to |= uint32_t(uint8_t(low)) << (8 * k);
            weight = (weight - uint32_t(int32_t(low))) >> 8;
        };
        digit(c), digit(b), digit(a);
    }
};

__m512i spread(uint32_t value) { return _mm512_set1_epi32(int(value)); }

struct Sums {
    __m512i a = _mm512_setzero_si512(), b = a, c = spread(1u << (kWeightBits - 1));

    void add(__m512i pixels, __m512i wa, __m512i wb, __m512i wc) {
        a = _mm512_dpbusd_epi32(a, pixels, wa);
        b = _mm512_dpbusd_epi32(b, pixels, wb);
        c = _mm512_dpbusd_epi32(c, pixels, wc);
    }
    __m512i rounded() const {
        const __m512i high = _mm512_add_epi32(_mm512_slli_epi32(a, 16), _mm512_slli_epi32(b, 8));
        return _mm512_srli_epi32(_mm512_add_epi32(high, c), kWeightBits);
    }
};

// What filter_block() looks up for each pixel of the result, from left to right. Has 16 entries
// more than pixels, because filter_block() reads 16 at once.
struct Places {
    std::vector<uint32_t> begin;                               // byte of a row
    std::vector<uint32_t> a[kGroups], b[kGroups], c[kGroups];  // Digits

    void make(const Taps& taps, int C, bool flip, int groups) {
        const size_t W = taps.first.size();
        begin.assign(W + 16, 0);
        for (int g = 0; g < groups; ++g)
            for (auto* digits : {&a[g], &b[g], &c[g]}) digits->resize(W + 16);
        for (size_t p = 0; p < W; ++p) {
            const size_t q = flip ? W - 1 - p : p;
            begin[p] = uint32_t(taps.first[q] * C);
            for (int g = 0; g < groups; ++g) {
                Digits digits;
                for (int k = 0; k < std::min(taps.count[q] - 4 * g, 4); ++k)
                    digits.set(k, taps.weight(q, 4 * g + k));
                a[g][p] = digits.a, b[g][p] = digits.b, c[g][p] = digits.c;
            }
        }
    }
};

// Computes bytes [i, i + 16) of each row of the result. Group g of the taps reads only the 64 bytes
// from window + 4·C·g on.
template <int kUsed>
void filter_block(const uint8_t* in, size_t in_bytes, int rows, size_t C, const Places& places,
                  size_t i, size_t window, __mmask16 kept, uint8_t* out, size_t out_bytes) {
    const size_t p = i / C;
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    // Byte i + lane belongs to the pixel `pixel` after p, and to its channel `channel`.
    const __m512i from_p = _mm512_add_epi32(lanes, spread(uint32_t(i - p * C)));
    const __m512i thirds = _mm512_srli_epi32(_mm512_mullo_epi32(from_p, spread(171)), 9);  // /3
    const __m512i pixel = C == 1 ? lanes : thirds;
    const __m512i channel =
        _mm512_sub_epi32(from_p, _mm512_mullo_epi32(pixel, spread(uint32_t(C))));
    const auto look_up = [&](const std::vector<uint32_t>& table) {
        return _mm512_permutexvar_epi32(pixel, _mm512_loadu_si512(table.data() + p));
    };
    const __m512i begin = _mm512_sub_epi32(look_up(places.begin), spread(uint32_t(window)));
    const __m512i take =
        _mm512_add_epi32(_mm512_mullo_epi32(_mm512_add_epi32(begin, channel), spread(kEach)),
                         spread(uint32_t(C) * 0x03020100));
    __m512i a[kUsed], b[kUsed], c[kUsed];
    for (int g = 0; g < kUsed; ++g)
        a[g] = look_up(places.a[g]), b[g] = look_up(places.b[g]), c[g] = look_up(places.c[g]);
    in += window, out += i;
    for (int r = 0; r < rows; ++r, in += in_bytes, out += out_bytes) {
        Sums sums;
        for (int g = 0; g < kUsed; ++g)
            sums.add(_mm512_permutexvar_epi8(take, _mm512_loadu_si512(in + 4 * C * size_t(g))),
                     a[g], b[g], c[g]);
        _mm_mask_storeu_epi8(out, kept, _mm512_cvtusepi32_epi8(sums.rounded()));
    }
}

}  // namespace

void avx512_across(const uint8_t* in, size_t in_bytes, int rows, int C, const Taps& taps, bool flip,
                   uint8_t* out, size_t out_bytes) {
    static thread_local Places places;
    const size_t W = taps.first.size(), channels = size_t(C), n = W * channels;
    const int groups = (*std::max_element(taps.count.begin(), taps.count.end()) + 3) / 4;
    // The pixels of 16 bytes of the result, and how far apart in a row they begin at most.
    const size_t wide = C == 1 ? 16 : 6;
    int apart = 0;
    for (size_t q = 0; q < W; ++q)
        apart = std::max(apart, taps.first[std::min(q + wide, W) - 1] - taps.first[q]);
    if (groups > kGroups || (apart + 4) * C > 64)
        return avx2_across(in, in_bytes, rows, C, taps, flip, out, out_bytes);
    places.make(taps, C, flip, groups);
    const auto filter = groups == 1   ? filter_block<1>
                        : groups == 2 ? filter_block<2>
                                      : filter_block<3>;
    for (int r = 0; r < rows; r += kRowsAtATime)
        for (size_t i = 0; i < n; i += 16) {
            const size_t last = std::min(i + 15, n - 1);
            const size_t window =
                std::min(places.begin[i / channels], places.begin[last / channels]);
            filter(in + size_t(r) * in_bytes, in_bytes, std::min(rows - r, kRowsAtATime), channels,
                   places, i, window, __mmask16(0xFFFF >> (15 - (last - i))),
                   out + size_t(r) * out_bytes, out_bytes);
        }
}

void avx512_down(const uint8_t* in, size_t in_bytes, int skipped, size_t n, const Taps& taps,
                 size_t p, const float* scale, const float* bias, float* out) {
    const int count = taps.count[p], groups = (count + 3) / 4;
    if (n < 16 || groups > kGroups)
        return avx2_down(in, in_bytes, skipped, n, taps, p, scale, bias, out);
    in += size_t(taps.first[p] - skipped) * in_bytes;
    const uint8_t* rows[4 * kGroups];
    __m512i a[kGroups], b[kGroups], c[kGroups];
    for (int g = 0; g < groups; ++g) {
        Digits digits;
        for (int k = 4 * g; k < 4 * g + 4; ++k) {
            rows[k] = in + size_t(std::min(k, count - 1)) * in_bytes;  // past the last: weight 0
            if (k < count) digits.set(k - 4 * g, taps.weight(p, k));
        }
        a[g] = spread(digits.a), b[g] = spread(digits.b), c[g] = spread(digits.c);
    }
    // From 16 bytes of each of four rows to 16 times four bytes.
    const __m512i turned = _mm512_add_epi32(
        _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                           spread(kEach)),
        spread(0x30201000));
    const auto load = [](const uint8_t* bytes) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    };
    for (size_t i = 0; i < n; i += 16) {
        i = std::min(i, n - 16);  // the last step goes back over a few: the same values once more
        Sums sums;
        for (int g = 0; g < groups; ++g) {
            const uint8_t* const* four = rows + 4 * g;
            __m512i bytes = _mm512_castsi128_si512(load(four[0] + i));
            bytes = _mm512_inserti32x4(bytes, load(four[1] + i), 1);
            bytes = _mm512_inserti32x4(bytes, load(four[2] + i), 2);
            bytes = _mm512_inserti32x4(bytes, load(four[3] + i), 3);
            sums.add(_mm512_permutexvar_epi8(turned, bytes), a[g], b[g], c[g]);
        }
        const __m512i pixel = _mm512_min_epu32(sums.rounded(), spread(255));
        const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(pixel), _mm512_loadu_ps(scale + i));
        _mm512_storeu_ps(out + i, _mm512_add_ps(product, _mm512_loadu_ps(bias + i)));
    }
}

}  // namespace convoy
#endif
