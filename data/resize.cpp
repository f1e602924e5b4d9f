// resize.cpp — separable resampling with a triangle filter, as Pillow does it (src/libImaging/
// Resample.c; Pillow's own tests fix the behaviour, and tests/test_augment.cpp compares with it):
//
//   scale = in / out, support = max(1, scale)
//   weight of input i for output o:  1 − |i + ½ − (o + ½)·scale| / support, normalised to sum 1
//
// so a reduction averages over all the pixels it covers (antialiased) and an enlargement is plain
// bilinear. First across, then down, with 8-bit pixels between and weights in fixed point with 22
// bits: 8 bits of pixel and 22 of weight leave one bit of an int32 for the sign and one to spare.
#include "data/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/base/check.h"

namespace convoy {
namespace {

constexpr int kPrecision = 22;
constexpr int32_t kHalf = 1 << (kPrecision - 1);

// A pixel in a vector register: GCC's and Clang's portable vectors, the same on x86-64 and arm64.
typedef int32_t Int4 __attribute__((vector_size(16)));
typedef uint8_t Byte4 __attribute__((vector_size(4)));

// Reads four bytes: the pixel and one byte after it.
inline Int4 load_pixel(const uint8_t* p) {
    Byte4 bytes;
    std::memcpy(&bytes, p, 4);
    return __builtin_convertvector(bytes, Int4);
}

inline void store_pixel(Int4 sum, uint8_t* p) {
    for (int c = 0; c < 3; ++c) p[c] = uint8_t(std::min(sum[c] >> kPrecision, 255));
}

// One output pixel of `kRows` rows at once: a weight is loaded once for all of them.
template <int kRows>
inline void filter_pixel(const uint8_t* const* rows, size_t offset, const int32_t* weights,
                         int count, uint8_t* out, size_t out_row_bytes) {
    Int4 sums[kRows];
    for (Int4& sum : sums) sum = Int4{kHalf, kHalf, kHalf, kHalf};
    for (int k = 0; k < count; ++k, offset += 3)
        for (int r = 0; r < kRows; ++r) sums[r] += load_pixel(rows[r] + offset) * weights[k];
    for (int r = 0; r < kRows; ++r) store_pixel(sums[r], out + size_t(r) * out_row_bytes);
}

}  // namespace

// Places [begin, begin + size) of an axis of `in` pixels resized to `out`.
void Resizer::Taps::compute(int in, int out, int begin, int size) {
    const double scale = double(in) / out, support = std::max(1.0, scale);
    stride = size_t(std::ceil(support)) * 2 + 1;
    first.resize(size_t(size)), count.resize(size_t(size));
    weights.resize(size_t(size) * stride);
    for (int o = 0; o < size; ++o) {
        const double centre = (begin + o + 0.5) * scale;
        // Truncation of what may be negative, then the bound: the same as a floor here.
        const int low = std::max(int(centre - support + 0.5), 0);
        const int high = std::min(int(centre + support + 0.5), in);
        int32_t* weight = weights.data() + size_t(o) * stride;
        const auto triangle = [&](int i) {
            return std::max(0.0, 1 - std::abs((i - centre + 0.5) * (1 / support)));
        };
        double sum = 0;
        for (int i = low; i < high; ++i) sum += triangle(i);
        for (int i = low; i < high; ++i)
            weight[i - low] = int32_t(0.5 + triangle(i) / sum * (1 << kPrecision));
        first[size_t(o)] = low, count[size_t(o)] = high - low;
    }
}

// Rows [begin, begin + rows) of the input, at output width, into narrow_.
void Resizer::across(ImageView from, int begin, int rows, int W, bool flip) {
    const size_t out_bytes = size_t(W) * 3;
    narrow_.resize(size_t(rows) * out_bytes);
    const uint8_t* in[4];
    const auto run = [&]<int kRows>(int row) {
        for (int q = 0; q < W; ++q) {
            uint8_t* out =
                narrow_.data() + size_t(row) * out_bytes + size_t(flip ? W - 1 - q : q) * 3;
            filter_pixel<kRows>(in, size_t(columns_.first[size_t(q)]) * 3,
                                columns_.weights.data() + size_t(q) * columns_.stride,
                                columns_.count[size_t(q)], out, out_bytes);
        }
    };
    int row = 0;
    // load_pixel reads a byte too many: after the image's last row there is none.
    const int safe = rows - (begin + rows == from.H);
    const auto address = [&](int r) { return from.pixels + size_t(begin + r) * from.row_bytes; };
    for (; row + 4 <= safe; row += 4) {
        for (int r = 0; r < 4; ++r) in[r] = address(row + r);
        run.template operator()<4>(row);
    }
    for (; row < rows; ++row) {
        in[0] = address(row);
        if (row >= safe) {
            last_row_.resize(size_t(from.W) * 3 + 1);
            std::copy_n(in[0], size_t(from.W) * 3, last_row_.data());
            in[0] = last_row_.data();
        }
        run.template operator()<1>(row);
    }
}

void Resizer::run(ImageView from, int H, int W, Crop window, bool flip, const float scale[3],
                  const float bias[3], float* out) {
    ENSURE(from.H > 0 && from.W > 0 && window.H > 0 && window.W > 0, from.H, "x", from.W, " to ",
           window.H, "x", window.W);
    ENSURE(window.top >= 0 && window.left >= 0 && window.top + window.H <= H &&
               window.left + window.W <= W,
           "the window leaves the image of ", H, "x", W);
    columns_.compute(from.W, W, window.left, window.W);
    rows_.compute(from.H, H, window.top, window.H);
    const int begin = rows_.first.front(), end = rows_.first.back() + rows_.count.back();
    across(from, begin, end - begin, window.W, flip);

    const size_t n = size_t(window.W) * 3;
    sums_.resize(n), scales_.resize(n), biases_.resize(n);
    for (size_t i = 0; i < n; ++i) scales_[i] = scale[i % 3], biases_[i] = bias[i % 3];
    for (int p = 0; p < window.H; ++p, out += n) {
        const uint8_t* row = narrow_.data() + size_t(rows_.first[size_t(p)] - begin) * n;
        const int32_t* weights = rows_.weights.data() + size_t(p) * rows_.stride;
        int32_t* __restrict sums = sums_.data();
        std::fill_n(sums, n, kHalf);
        for (int k = 0; k < rows_.count[size_t(p)]; ++k, row += n)
            for (size_t i = 0; i < n; ++i) sums[i] += row[i] * weights[k];
        for (size_t i = 0; i < n; ++i)
            out[i] = float(std::min(sums[i] >> kPrecision, 255)) * scales_[i] + biases_[i];
    }
}

}  // namespace convoy
