// pixel_ops.cpp — five kinds of loops do all operations: a table per channel, a blend with grey or
// with a blurred copy, a turn of the hue, and an affine map. Arithmetic and rounding are Pillow's
// (its files Blend.c, Convert.c, Filter.c, Geometry.c and ImageOps.py).
#include "data/images/pixel_ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

#include "src/base/check.h"

namespace convoy {
namespace {

using Table = std::array<uint8_t, 256>;
using Histogram = std::array<int, 256>;

uint8_t clipped(float v) { return uint8_t(std::min(std::max(int(v), 0), 255)); }

// From a (factor 0) to b (factor 1) and beyond.
uint8_t blend(int a, int b, float factor) { return clipped(float(a) + factor * float(b - a)); }

// pixel = table(channel, histogram of the channel)[pixel]
template <class MakeTable>
void map_each_channel(Image& image, MakeTable table) {
    const size_t C = size_t(image.C), n = image.pixels.size();
    uint8_t* pixels = image.pixels.data();
    for (size_t c = 0; c < C; ++c) {
        Histogram counts{};
        for (size_t i = c; i < n; i += C) ++counts[pixels[i]];
        const Table values = table(counts);
        for (size_t i = c; i < n; i += C) pixels[i] = values[pixels[i]];
    }
}

// pixel = value(pixel)
template <class Value>
void map_pixels(Image& image, Value value) {
    for (uint8_t& pixel : image.pixels) pixel = uint8_t(value(int(pixel)));
}

Table stretched(const Histogram& counts) {
    const auto used = [](int count) { return count > 0; };
    const int low = int(std::find_if(counts.begin(), counts.end(), used) - counts.begin());
    const int high = int(counts.rend() - std::find_if(counts.rbegin(), counts.rend(), used)) - 1;
    const double scale = high > low ? 255.0 / (high - low) : 1;
    const double offset = high > low ? -low * scale : 0;
    Table table;
    for (int v = 0; v < 256; ++v)
        table[size_t(v)] = uint8_t(std::clamp(int(v * scale + offset), 0, 255));
    return table;
}

Table equalized(const Histogram& counts) {
    int total = 0, last = 0;  // last: of the values that occur
    for (int count : counts) total += count, last = count > 0 ? count : last;
    const int step = (total - last) / 255;
    Table table;
    for (int v = 0, below = step / 2; v < 256; below += counts[size_t(v++)])
        table[size_t(v)] = uint8_t(step ? std::min(below / step, 255) : v);
    return table;
}

// The grey of the image, a byte per pixel. That of a coloured image is put into `spare`.
const std::vector<uint8_t>& grey_of(const Image& image, Image& spare) {
    if (image.C == 1) return image.pixels;
    spare.pixels.resize(image.pixels.size() / 3);
    rgb_to_grey(image.pixels.data(), spare.pixels.size(), spare.pixels.data());
    return spare.pixels;
}

int mean(const std::vector<uint8_t>& values) {
    const auto sum = std::accumulate(values.begin(), values.end(), int64_t{});
    return int(double(sum) / double(values.size()) + 0.5);
}

// to = from `from` (factor 0) to `to` (factor 1) and beyond
void blend_bytes(const uint8_t* __restrict from, size_t n, float factor, uint8_t* __restrict to) {
    for (size_t i = 0; i < n; ++i) to[i] = blend(from[i], to[i], factor);
}
void blend_images(const Image& from, float factor, Image& to) {
    blend_bytes(from.pixels.data(), to.pixels.size(), factor, to.pixels.data());
}

// The mean of 3x3 pixels; the middle one counts 5 times. row, C: bytes to the next row, column.
void blur_row(const uint8_t* __restrict in, ptrdiff_t row, ptrdiff_t C, ptrdiff_t n,
              uint8_t* __restrict out) {
    constexpr float kSide = 1 / 13.0f, kMiddle = 5 / 13.0f;
    const uint8_t *above = in - row, *below = in + row;
    for (ptrdiff_t i = 0; i < n; ++i) {
        float sum = 0.5f;
        sum += float(below[i - C]) * kSide + float(below[i]) * kSide + float(below[i + C]) * kSide;
        sum += float(in[i - C]) * kSide + float(in[i]) * kMiddle + float(in[i + C]) * kSide;
        sum += float(above[i - C]) * kSide + float(above[i]) * kSide + float(above[i + C]) * kSide;
        out[i] = clipped(sum);
    }
}

// Pixels at the edge stay as they are.
void blur(const Image& image, Image& blurred) {
    const ptrdiff_t C = image.C, row = image.W * C;
    blurred.pixels = image.pixels;
    for (ptrdiff_t h = 1; h < image.H - 1 && image.W > 2; ++h)
        blur_row(&image.pixels[size_t(h * row + C)], row, C, row - 2 * C,
                 &blurred.pixels[size_t(h * row + C)]);
}

// Converts to 8-bit hue, saturation and value, and back with another hue. Tables hold the values
// that the hue alone decides. No branches: neighbouring pixels would take different ones.
void turn_hue(Image& image, int turn) {
    // Which of v, p, q, t (0 to 3) are red, green and blue, for each sixth of the circle.
    static constexpr uint8_t kOrders[6][3] = {{0, 3, 1}, {2, 0, 1}, {1, 0, 3},
                                              {1, 2, 0}, {3, 1, 0}, {0, 1, 2}};
    std::array<const uint8_t*, 256> orders;  // by the old hue
    std::array<float, 256> parts, deeps;
    for (int i = 0; i < 256; ++i) {
        const int h = (i + turn) & 255, sixth = int(h * 6.0 / 255.0);  // 6 for 255: the same as 0
        orders[size_t(i)] = kOrders[sixth % 6];
        parts[size_t(i)] = float(h * 6.0 / 255.0 - sixth);
        deeps[size_t(i)] = float(i / 255.0);
    }
    for (size_t i = 0; i < image.pixels.size(); i += 3) {
        uint8_t* rgb = &image.pixels[i];
        const int r = rgb[0], g = rgb[1], b = rgb[2];
        const int top = std::max({r, g, b}), range = top - std::min({r, g, b});
        const float span = float(std::max(range, 1)), value = float(std::max(top, 1));
        const float rc = float(top - r) / span, gc = float(top - g) / span,
                    bc = float(top - b) / span;
        const float of_red = bc - gc, of_green = float(2.0 + rc - bc),
                    of_blue = float(4.0 + gc - rc);
        const float side = r == top ? of_red : g == top ? of_green : of_blue;
        const double around = side / 6.0 + 1;
        const float hue = float(around - (around < 1 ? 0.0 : 1.0));
        const size_t h = size_t(int(hue * 255.0)), s = size_t(int(float(range) / value * 255.0));
        const auto less = [&](double by) { return uint8_t(int(top * (1 - by) + 0.5)); };
        const float part = parts[h], deep = deeps[s];
        const uint8_t vpqt[4] = {uint8_t(top), less(deep), less(deep * part),
                                 less(deep * (1.0 - part))};
        for (int c = 0; c < 3; ++c) rgb[c] = vpqt[orders[h][c]];
    }
}

// out[y, x] = in[⌊c·x' + d·y' + f⌋, ⌊a·x' + b·y' + e⌋], x' = x + ½, y' = y + ½, or black where that
// lies outside; in 16.16 bits fixed point.
template <int C>
void map_affine(double a, double b, double e, double c, double d, double f, Image& image,
                Image& spare) {
    const auto fixed = [](double v) { return int64_t(std::floor(v * 65536 + 0.5)); };
    const int64_t x_by_x = fixed(a), x_by_y = fixed(b), y_by_x = fixed(c), y_by_y = fixed(d);
    int64_t x_begin = fixed(e + a * 0.5 + b * 0.5), y_begin = fixed(f + c * 0.5 + d * 0.5);
    const int64_t W = image.W, H = image.H;
    spare.pixels.resize(image.pixels.size());
    uint8_t* out = spare.pixels.data();
    for (int h = 0; h < H; ++h, x_begin += x_by_y, y_begin += y_by_y) {
        int64_t x = x_begin, y = y_begin;
        if (x_by_x == 1 << 16 && y_by_x == 0) {  // a shifted row
            const int64_t row = y >> 16, right = -(x >> 16);
            const int64_t begin = std::clamp<int64_t>(right, 0, W);
            const int64_t end =
                row < 0 || row >= H ? begin : std::clamp<int64_t>(W + right, begin, W);
            std::fill_n(out, begin * C, 0);
            if (end > begin)
                std::copy_n(&image.pixels[size_t((row * W + begin - right) * C)], (end - begin) * C,
                            out + begin * C);
            std::fill_n(out + end * C, (W - end) * C, 0);
            out += W * C;
            continue;
        }
        for (int w = 0; w < W; ++w, out += C, x += x_by_x, y += y_by_x) {
            const bool inside = uint64_t(x) < uint64_t(W) << 16 && uint64_t(y) < uint64_t(H) << 16;
            const int64_t from = inside ? ((y >> 16) * W + (x >> 16)) * C : 0;
            for (int k = 0; k < C; ++k) out[k] = inside ? image.pixels[size_t(from + k)] : 0;
        }
    }
    std::swap(image.pixels, spare.pixels);
}

}  // namespace

void change_pixels(PixelStep step, Image& image, Image& spare) {
    const double by = step.amount;
    const float factor = float(by);
    const bool coloured = image.C == 3;
    const auto map = [&](double a, double b, double e, double c, double d, double f) {
        (coloured ? map_affine<3> : map_affine<1>)(a, b, e, c, d, f, image, spare);
    };
    switch (step.op) {
        case PixelOp::identity: return;
        case PixelOp::shear_x: return map(1, by, 0, 0, 1, 0);
        case PixelOp::shear_y: return map(1, 0, 0, by, 1, 0);
        case PixelOp::translate_x: return map(1, 0, -by, 0, 1, 0);
        case PixelOp::translate_y: return map(1, 0, 0, 0, 1, -by);
        case PixelOp::rotate: {
            const auto to_15_digits = [](double v) { return std::nearbyint(v * 1e15) / 1e15; };
            const double sine = to_15_digits(std::sin(by * M_PI / 180));
            const double cosine = to_15_digits(std::cos(by * M_PI / 180));
            const double x = image.W / 2.0, y = image.H / 2.0;
            return map(cosine, -sine, sine * y - cosine * x + x,  //
                       sine, cosine, -sine * x - cosine * y + y);
        }
        case PixelOp::brightness:
            return map_pixels(image, [&](int v) { return blend(0, v, factor); });
        case PixelOp::contrast: {
            const int grey = mean(grey_of(image, spare));
            return map_pixels(image, [&](int v) { return blend(grey, v, factor); });
        }
        case PixelOp::saturation:
            if (!coloured) return;
            grey_of(image, spare);
            spare.pixels.resize(image.pixels.size());
            for (size_t i = image.pixels.size() / 3; i-- > 0;)  // a pixel becomes three bytes
                std::fill_n(&spare.pixels[3 * i], 3, uint8_t(spare.pixels[i]));
            return blend_images(spare, factor, image);
        case PixelOp::sharpness: blur(image, spare); return blend_images(spare, factor, image);
        case PixelOp::posterize: {
            const int kept = 0xFF << (8 - int(by));
            return map_pixels(image, [&](int v) { return v & kept; });
        }
        case PixelOp::solarize: {
            const int first = int(std::ceil(by));
            return map_pixels(image, [&](int v) { return v < first ? v : 255 - v; });
        }
        case PixelOp::autocontrast: return map_each_channel(image, stretched);
        case PixelOp::equalize: return map_each_channel(image, equalized);
        case PixelOp::hue: return coloured ? turn_hue(image, int(by * 255)) : void();
    }
}

void normalise_pixels(const Image& image, const float* scale, const float* bias, float* out) {
    constexpr size_t kBlock = 24;  // whole pixels and whole vectors
    const size_t C = size_t(image.C), n = image.pixels.size();
    float scales[kBlock], biases[kBlock];
    for (size_t i = 0; i < kBlock; ++i) scales[i] = scale[i % C], biases[i] = bias[i % C];
    const uint8_t* pixels = image.pixels.data();
    size_t i = 0;
    for (; i + kBlock <= n; i += kBlock)
        for (size_t k = 0; k < kBlock; ++k)
            out[i + k] = float(pixels[i + k]) * scales[k] + biases[k];
    for (size_t k = 0; i + k < n; ++k) out[i + k] = float(pixels[i + k]) * scales[k] + biases[k];
}

void shift_reflected(int down, int right, Image& image, Image& spare) {
    ENSURE(std::abs(down) < image.H && std::abs(right) < image.W, down, " down, ", right,
           " right of ", image.H, "x", image.W);
    const int H = image.H, W = image.W, C = image.C;
    const auto reflected = [](int i, int n) { return i < 0 ? -i : i < n ? i : 2 * (n - 1) - i; };
    spare.pixels.resize(image.pixels.size());
    uint8_t* out = spare.pixels.data();
    for (int h = 0; h < H; ++h, out += W * C) {
        const uint8_t* in = &image.pixels[size_t(reflected(h - down, H)) * size_t(W * C)];
        const int begin = std::max(right, 0), end = std::min(W + right, W);
        const auto mirror = [&](int w) {
            std::memcpy(out + w * C, in + reflected(w - right, W) * C, size_t(C));
        };
        for (int w = 0; w < begin; ++w) mirror(w);
        std::memcpy(out + begin * C, in + (begin - right) * C, size_t((end - begin) * C));
        for (int w = end; w < W; ++w) mirror(w);
    }
    std::swap(image.pixels, spare.pixels);
}

}  // namespace convoy
