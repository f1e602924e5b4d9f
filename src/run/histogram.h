// histogram.h — how the numbers of a tensor are distributed, for TensorBoard.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>
#include <vector>

#include "src/base/protobuf.h"

namespace convoy {

// Counts in buckets of which eight make a factor of two; numbers below 2⁻⁴⁰ (9e-13) are one with 0.
// Numbers that are not finite are left out.
class Histogram {
 public:
    void add(std::span<const float> values, float scale = 1) {
        for (const float value : values) {
            const float x = value * scale;
            if (!std::isfinite(x)) continue;
            min_ = std::min(min_, double(x)), max_ = std::max(max_, double(x));
            ++num_, sum_ += x, squares_ += double(x) * x;
            // The exponent, and three bits of the fraction.
            const int place = int(std::bit_cast<uint32_t>(std::abs(x)) >> 20);
            const int bucket = std::max(place - kFirst + 1, 0);
            ++counts_[size_t(kHalf + (x < 0 ? -bucket : bucket))];
        }
    }
    // TensorBoard's HistogramProto; of empty buckets it has only those before others.
    ProtoMessage message() const {
        std::string limits, counts;
        for (int i = -kHalf; i <= kHalf; ++i) {
            const double* count = &counts_[size_t(kHalf + i)];
            if (*count == 0 && (i == kHalf || count[1] == 0)) continue;
            const double limit = i >= 0 ? edge(i) : -edge(-i - 1);
            limits.append(reinterpret_cast<const char*>(&limit), sizeof limit);
            counts.append(reinterpret_cast<const char*>(count), sizeof *count);
        }
        ProtoMessage message = ProtoMessage().real(1, min_).real(2, max_).real(3, num_);
        return message.real(4, sum_).real(5, squares_).bytes(6, limits).bytes(7, counts);
    }

 private:
    // Bucket 0 is around 0, bucket ±i from edge(i - 1) to edge(i) on its side.
    static double edge(int n) { return std::ldexp(1 + n % 8 / 8.0, n / 8 - 40); }
    static constexpr int kFirst = (127 - 40) << 3, kHalf = (255 << 3) - kFirst;
    std::vector<double> counts_ = std::vector<double>(2 * kHalf + 1);  // from -kHalf on
    double num_ = 0, min_ = INFINITY, max_ = -INFINITY, sum_ = 0, squares_ = 0;
};

}  // namespace convoy
