// resize.cpp — separable resampling with a triangle filter, as Pillow does it (its file
// src/libImaging/Resample.c; tests/test_augment.cpp compares the pixels):
//
//   scale = in / out, support = max(1, scale)
//   weight of input i for output o:  1 − |i + ½ − (o + ½)·scale| / support, normalised to sum 1
//
// so a reduction averages over all the pixels it covers (antialiased), and an enlargement is plain
// bilinear. The width is resized first, then the height; but the height first if it shrinks, and by
// more than twice the pixels by which the width shrinks, as in Pillow 13 (older versions never do).
// Pixels in between have 8 bits, and weights are in fixed point. Rows and columns outside the
// window are not computed.
#include "data/images/resize.h"

#include <cmath>

#include "src/base/check.h"

namespace convoy {

void Taps::compute(int in, int out, int begin, int size) {
    const double scale = double(in) / out, support = std::max(1.0, scale);
    stride = (size_t(std::ceil(support)) * 2 + 1 + 3) / 4 * 4;
    first.resize(size_t(size)), count.resize(size_t(size));
    high.assign(size_t(size) * stride, 0), low.assign(size_t(size) * stride, 0);
    for (int o = 0; o < size; ++o) {
        const double centre = (begin + o + 0.5) * scale;
        // A negative number is truncated and then bounded by 0, which is the same as a floor.
        const int lowest = std::max(int(centre - support + 0.5), 0);
        const int end = std::min(int(centre + support + 0.5), in);
        const auto triangle = [&](int i) {
            return std::max(0.0, 1 - std::abs((i - centre + 0.5) * (1 / support)));
        };
        double sum = 0;
        for (int i = lowest; i < end; ++i) sum += triangle(i);
        for (int i = lowest; i < end; ++i) {
            const int weight = int(0.5 + triangle(i) / sum * (1 << kWeightBits));
            const size_t at = size_t(o) * stride + size_t(i - lowest);
            high[at] = int16_t(weight >> kLowBits);  // at most 2^7
            low[at] = int16_t(weight & ((1 << kLowBits) - 1));
        }
        first[size_t(o)] = lowest, count[size_t(o)] = end - lowest;
    }
}

// Rows [begin, begin + rows) of the input, at output width, into narrow_.
void Resizer::across(const Image& from, int begin, int rows, int W, bool flip) {
    const size_t in_bytes = size_t(from.W) * size_t(from.C);
    const size_t out_bytes = size_t(W) * size_t(from.C) + 1;  // the byte after a row is overwritten
    narrow_.resize(size_t(rows) * out_bytes);
    // The loops read a little past the end of a row. There may be no memory after the last rows of
    // the image, so these are copied first.
    const int last = int((kOverread + in_bytes - 1) / in_bytes);
    const int safe = std::clamp(from.H - last - begin, 0, rows);
    const uint8_t* in = from.pixels.data() + size_t(begin) * in_bytes;
    filter_across(in, in_bytes, safe, from.C, columns_, flip, narrow_.data(), out_bytes);
    padded_.resize(in_bytes + kOverread);
    for (int row = safe; row < rows; ++row) {
        std::copy_n(in + size_t(row) * in_bytes, in_bytes, padded_.data());
        filter_across(padded_.data(), 0, 1, from.C, columns_, flip,
                      narrow_.data() + size_t(row) * out_bytes, out_bytes);
    }
}

// x: whole numbers from 0 to 255.
static void to_bytes(const float* __restrict x, size_t n, uint8_t* __restrict out) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16)  // a number that is known becomes vectors
        for (size_t j = i; j < i + 16; ++j) out[j] = uint8_t(int(x[j]));
    for (; i < n; ++i) out[i] = uint8_t(int(x[i]));
}

// The columns that are needed of the input, at output height, into short_.
void Resizer::shorten(const Image& from) {
    const size_t in_bytes = size_t(from.W) * size_t(from.C), H = rows_.first.size();
    const size_t begin = size_t(columns_.begin()) * size_t(from.C);
    const size_t n = size_t(columns_.end()) * size_t(from.C) - begin;
    const std::vector<float> ones(n, 1), zeros(n, 0);
    std::vector<float> row(n);
    short_.H = int(H), short_.W = from.W, short_.C = from.C;
    short_.pixels.resize(H * in_bytes);
    for (size_t p = 0; p < H; ++p) {
        filter_down(from.pixels.data() + begin, in_bytes, 0, n, rows_, p, ones.data(), zeros.data(),
                    row.data());
        to_bytes(row.data(), n, &short_.pixels[p * in_bytes + begin]);
    }
}

void Resizer::run(const Image& from, const Resizing& how, const float* scale, const float* bias,
                  float* out) {
    const Crop& window = how.window;
    ENSURE(from.H > 0 && from.W > 0 && window.H > 0 && window.W > 0, from.H, "x", from.W, " to ",
           window.H, "x", window.W);
    ENSURE(window.top >= 0 && window.left >= 0 && window.top + window.H <= how.H &&
               window.left + window.W <= how.W,
           "the window is not inside the image of ", how.H, "x", how.W);
    columns_.compute(from.W, how.W, window.left, window.W);
    rows_.compute(from.H, how.H, window.top, window.H);
    const size_t C = size_t(from.C), n = size_t(window.W) * C;
    scales_.resize(n), biases_.resize(n);
    for (size_t i = 0; i < n; ++i) scales_[i] = scale[i % C], biases_[i] = bias[i % C];
    const bool height_first = from.H > how.H && from.H - how.H > 2 * (from.W - how.W);
    if (height_first) shorten(from), rows_.compute(window.H, window.H, 0, window.H);
    const int begin = rows_.begin();
    across(height_first ? short_ : from, begin, rows_.end() - begin, window.W, how.flip);
    for (size_t p = 0; p < size_t(window.H); ++p)
        filter_down(narrow_.data(), n + 1, begin, n, rows_, p, scales_.data(), biases_.data(),
                    out + p * n);
}

void Resizer::run(const Image& from, const Resizing& how, float* floats, Image& out) {
    constexpr float kOnes[3] = {1, 1, 1}, kZeros[3] = {0, 0, 0};
    run(from, how, kOnes, kZeros, floats);
    out.H = how.window.H, out.W = how.window.W, out.C = from.C;
    out.pixels.resize(size_t(out.H) * size_t(out.W) * size_t(out.C));
    to_bytes(floats, out.pixels.size(), out.pixels.data());
}

Image resized(Resizer& resizer, const Image& image, int H, int W) {
    std::vector<float> floats(size_t(H) * size_t(W) * size_t(image.C));
    Image out;
    resizer.run(image, {H, W, {0, 0, H, W}, false}, floats.data(), out);
    return out;
}

}  // namespace convoy
