// buckets.h — the bytes that a step sends: the size of buckets, and what a linear layer's gradient
// costs.
#pragma once

#include <cstddef>

namespace convoy {

constexpr size_t kDefaultBucketBytes = 4 << 20;  // if no link was measured

// Bytes that a rank sends per step for a linear layer's gradient (fp32, mean over ranks).
struct LinearTraffic {
    double dense_bytes = 0;   // as the gradient, over the ring
    double factor_bytes = 0;  // as its factors
};
// All ranks, and the ranks of the ring (Communicator::around).
struct RingSize {
    RingSize(int all) : RingSize(all, all) {}
    RingSize(int all, int sum) : ranks(all), around(sum) {}
    int ranks, around;
};

}  // namespace convoy
