// buckets.h — the units that are sent in a step: buckets of params, and factors of linear layers.
// Arithmetic only: GradReducer sends them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/config/config.h"

namespace convoy {

constexpr size_t kDefaultBucketBytes = 4 << 20;  // if no link was measured

// Bytes that a rank sends per step for a linear layer's gradient (fp32, mean over ranks).
struct LinearTraffic {
    double dense_bytes = 0;   // as the gradient, over the ring
    double factor_bytes = 0;  // as its factors
    bool as_factors(FactorMode mode) const {
        return mode == FactorMode::kOn ? factor_bytes > 0
                                       : mode == FactorMode::kAuto && factor_bytes < dense_bytes;
    }
};
// All ranks, and the ranks of the ring (Communicator::around).
struct RingSize {
    RingSize(int all) : RingSize(all, all) {}
    RingSize(int all, int sum) : ranks(all), around(sum) {}
    int ranks, around;
};
// batch: images of a step over all ranks.
LinearTraffic linear_traffic(int inputs, int outputs, bool bias, int64_t batch, RingSize ring);

struct TravelParam {
    size_t floats = 0;        // in the gradient arena, padding included
    bool as_factors = false;  // its layer's gradient is sent as factors
    bool bias = false;        // … and this is the bias, which is sent with the weights
};
// Params [begin, end). For a layer sent as factors: one param, the weights.
struct BucketSpan {
    size_t begin, end;
    bool as_factors;
};
// Cuts params, which are in backward order. A bucket is closed when it reaches `bucket_bytes` (the
// first at a quarter of it, so that sending starts early), and before a layer sent as factors.
std::vector<BucketSpan> cut_buckets(std::span<const TravelParam> params, size_t bucket_bytes);

}  // namespace convoy
