// resize.h — Pillow's antialiased bilinear resize of 8-bit pixels, straight into normalised floats.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "data/images/decode.h"

namespace convoy {

constexpr int kWeightBits = 22;  // the product with an 8-bit pixel fits an int32
constexpr int kLowBits = 15;     // of a weight, in Taps::low

// Weights for some output places (pixels) of a resized axis. Each output place reads `count` input
// places from `first` on.
struct Taps {
    std::vector<int32_t> first, count;
    // A weight is high·2^15 + low; both factors have 16 bits. Each place has `stride` weights, a
    // multiple of four. The weights after `count` are zeros.
    std::vector<int16_t> high, low;
    size_t stride = 0;

    // Places [begin, begin + size) of an axis of `in` pixels resized to `out`.
    void compute(int in, int out, int begin, int size);

    // The input places that are read: [begin(), end()).
    int begin() const { return first.front(); }
    int end() const { return first.back() + count.back(); }
    // Weight k < count[place]. The weights of a place sum to about 2^kWeightBits.
    uint32_t weight(size_t place, int k) const {
        const size_t at = place * stride + size_t(k);
        return uint32_t(high[at]) << kLowBits | uint32_t(low[at]);
    }
};

// How an image is resized to H×W. Only the window is computed. flip mirrors it left to right.
struct Resizing {
    int H, W;
    Crop window;
    bool flip;
};

// Keeps its memory from call to call. For one thread at a time.
class Resizer {
 public:
    // Resizes `from` and writes only the window of the result:
    //   out[p,q,c] = pixel[p,q,c] · scale[c] + bias[c]        window.H × window.W × C floats
    // where pixel (0–255) is what resize(…, BILINEAR) of Pillow 13 gives, bit for bit.
    void run(const Image& from, const Resizing& how, const float* scale, const float* bias,
             float* out);
    // The same as bytes. `floats` has room for as many.
    void run(const Image& from, const Resizing& how, float* floats, Image& out);

 private:
    void across(const Image& from, int begin, int rows, int W, bool flip);
    void shorten(const Image& from);

    Taps columns_, rows_;
    Image short_;                         // the input at output height
    std::vector<uint8_t> narrow_;         // input rows at output width
    std::vector<uint8_t> padded_;         // copy of one of the last input rows
    std::vector<float> scales_, biases_;  // one output row
};

// The whole image at height H and width W, in bytes.
Image resized(Resizer& resizer, const Image& image, int H, int W);
// The height and width of an H×W image whose longer side becomes `side`.
inline std::array<int, 2> fitted(int H, int W, int side) {
    const int longer = std::max(H, W);
    const auto scaled = [&](int n) {
        return std::max(1, int((int64_t(n) * side + longer / 2) / longer));
    };
    return {scaled(H), scaled(W)};
}

// The two inner loops (resize_passes.cpp).
//
// out[r,q] = Σ in[r, first(q) + k] · weight(q, k), rounded; one pixel of C bytes a tap. Rows lie
// in_bytes and out_bytes apart. `flip` puts place q at width − 1 − q. May read kOverread bytes
// after each row of `in`, and overwrite the byte after each row of `out`.
using FilterAcross = void(const uint8_t* in, size_t in_bytes, int rows, int C, const Taps& taps,
                          bool flip, uint8_t* out, size_t out_bytes);
constexpr size_t kOverread = 16;
// out[i] = (Σ in[first(p) − skipped + k, i] · weight(p, k), rounded) · scale[i] + bias[i] for i in
// [0, n), for place p of the height. Rows of `in` lie in_bytes apart.
using FilterDown = void(const uint8_t* in, size_t in_bytes, int skipped, size_t n, const Taps& taps,
                        size_t p, const float* scale, const float* bias, float* out);

// Both give the same bits. filter: with AVX2 if the compiler may use it.
FilterAcross portable_across, filter_across;
FilterDown portable_down, filter_down;

}  // namespace convoy
