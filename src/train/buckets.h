// buckets.h — what travels at once in a step: a bucket of params, or the factors of a linear layer.
// Arithmetic alone: for the reducer, which sends, and for the plan, which says how long that takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/config/config.h"

namespace convoy {

constexpr size_t kDefaultBucketBytes = 4 << 20;  // where no link was measured

// How a linear layer's gradient may travel (factors.h has the formulas): sent by a rank in a step,
// fp32, in the mean; nothing in a world of one.
struct LinearTraffic {
    double dense_bytes = 0, factor_bytes = 0;
    bool as_factors(FactorMode mode) const {
        return mode == FactorMode::kOn ? factor_bytes > 0
                                       : mode == FactorMode::kAuto && factor_bytes < dense_bytes;
    }
};
// batch: images of a step over all ranks.
LinearTraffic linear_traffic(int inputs, int outputs, bool bias, int64_t batch, int world);

// A param of gradients.
struct TravelParam {
    size_t floats = 0;        // in the arena, padding included
    bool as_factors = false;  // its layer's gradient
    bool bias = false;        // then it has no bucket of its own: it comes with the weights
};
// Rows [begin, end): as factors a single one, the weights.
struct BucketSpan {
    size_t begin, end;
    bool as_factors;
};
// Rows as the backward pass completes them, from the back of the arena. A bucket is closed once it
// has reached `bucket_bytes`, the first at a fourth of that, so that the network starts early; and
// where a layer's factors come between.
std::vector<BucketSpan> cut_buckets(std::span<const TravelParam> params, size_t bucket_bytes);

}  // namespace convoy
