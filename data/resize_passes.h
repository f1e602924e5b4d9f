// resize_passes.h — the two inner loops of resizing, in portable C++ and for AVX2.
//
// Both give the same bits (tests/test_augment.cpp compares them). resize.cpp takes
// the faster one that the compiler may use.
#pragma once

#include <cstddef>
#include <cstdint>

#include "data/resize.h"

namespace convoy {

constexpr size_t kOverread = 16;  // bytes behind a row that the AVX2 loops may read

namespace portable {
// out[r,q] = Σ in[r, first(q) + k] · weight(q, k), rounded; one pixel a tap. `rows` rows, which lie
// in_bytes and out_bytes apart. `flip` puts place q at width − 1 − q. The byte behind each row of
// `out` may be overwritten.
void filter_across(const uint8_t* in, size_t in_bytes, int rows, const Taps& taps, bool flip,
                   uint8_t* out, size_t out_bytes);
// out[i] = (Σ in[first(p) − skipped + k, i] · weight(p, k), rounded) · scale[i] + bias[i] for i in
// [0, n), for place p of the height. Rows of `in` lie in_bytes apart.
void filter_down(const uint8_t* in, size_t in_bytes, int skipped, size_t n, const Taps& taps,
                 size_t p, const float* scale, const float* bias, float* out);
}  // namespace portable

#ifdef __AVX2__
namespace avx2 {
void filter_across(const uint8_t* in, size_t in_bytes, int rows, const Taps& taps, bool flip,
                   uint8_t* out, size_t out_bytes);
void filter_down(const uint8_t* in, size_t in_bytes, int skipped, size_t n, const Taps& taps,
                 size_t p, const float* scale, const float* bias, float* out);
}  // namespace avx2
#endif

}  // namespace convoy
