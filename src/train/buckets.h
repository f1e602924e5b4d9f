// buckets.h — what is sent at once in a step: a bucket of params, or factors of a linear layer.
// Arithmetic only, for the reducer, which sends, and for src/plan, which predicts how long it
// takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/config/config.h"

namespace convoy {

constexpr size_t kDefaultBucketBytes = 4 << 20;  // where no link was measured

// How a linear layer's gradient may travel (factors.h has the formulas): bytes that a rank sends in
// a step, fp32, in the mean. Nothing in a world of one.
struct LinearTraffic {
    double dense_bytes = 0;   // the gradient itself, over the ring
    double factor_bytes = 0;  // its factors
    bool as_factors(FactorMode mode) const {
        return mode == FactorMode::kOn ? factor_bytes > 0
                                       : mode == FactorMode::kAuto && factor_bytes < dense_bytes;
    }
};
// Ranks, and how many of them a sum goes around (Communicator::around).
struct RingSize {
    RingSize(int all) : RingSize(all, all) {}
    RingSize(int all, int sum) : ranks(all), around(sum) {}
    int ranks, around;
};
// batch: images of a step over all ranks.
LinearTraffic linear_traffic(int inputs, int outputs, bool bias, int64_t batch, RingSize ring);

struct TravelParam {
    size_t floats = 0;        // in the gradient arena, padding included
    bool as_factors = false;  // its layer's gradient travels as factors
    bool bias = false;        // if so, a bias is sent with its weights and has no bucket
};
// Params [begin, end); of a layer sent as factors just one param, the weights.
struct BucketSpan {
    size_t begin, end;
    bool as_factors;
};
// Cuts params in the order of the backward pass, from the back of the arena. A bucket is closed
// once it has reached `bucket_bytes`, the first at a fourth of that, so that the network starts
// early; and before a layer that travels as factors.
std::vector<BucketSpan> cut_buckets(std::span<const TravelParam> params, size_t bucket_bytes);

}  // namespace convoy
