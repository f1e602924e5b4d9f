// order.h — which sample is trained when, and by whom.
//
// Step k of epoch e is the k-th slice of one permutation of the whole data set, made from
// (seed, e). Each rank takes its share of that slice. So every rank has the same number of steps
// by construction, a share may be short or empty, and the position in the data is two integers:
// (epoch, samples consumed).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace convoy {

struct Range {
    int64_t begin = 0, end = 0;
    int64_t size() const { return end - begin; }
    bool operator==(const Range&) const = default;
};

// The permutation of [0, n) of an epoch: Fisher–Yates with draws of (seed, epoch, kOrder).
std::vector<uint32_t> epoch_order(size_t n, uint64_t seed, uint32_t epoch);

// Rank's part of a slice of `count` samples: contiguous, in rank order, sizes proportional to
// `shares` (one weight a rank, not all 0; equal weights for equal parts), together exactly [0,
// count).
Range share_of(int64_t count, std::span<const double> shares, int rank);

// The largest of these parts: memory for that many samples is enough on any rank.
int64_t largest_share(int64_t count, std::span<const double> shares);

// Parses "5:3:2:0" into weights; "" gives world equal ones. Throws Error: not numbers, negative,
// all zero, not as many as ranks.
std::vector<double> parse_shares(const std::string& text, int world);

}  // namespace convoy
