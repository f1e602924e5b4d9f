// order.h — which sample is trained in which step, and by which rank.
//
// Step k of epoch e trains on the k-th slice of one permutation of the whole data set, made from
// (seed, e). Each rank takes its share of the slice, which may be short or empty. So all ranks have
// the same number of steps, and (epoch, samples consumed) is the position in the data.
//
// The permutation is a function, not a table: a generalised Feistel network with cycle-walking
// (Black, Rogaway: "Ciphers with Arbitrary Finite Domains", CT-RSA 2002). A number below n ≤ a·b is
// a pair (row, column) of an a×b grid. Each round adds a draw of Philox, keyed by one of the two,
// to the other. A round can be undone, so it is a permutation of the grid. If the result is one of
// the few numbers ≥ n, the permutation is applied again.
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

// A permutation of [0, n): the same for the same key, on every machine.
class Permutation {
 public:
    Permutation(uint64_t n, uint64_t key);
    uint64_t operator()(uint64_t i) const;  // i < n

 private:
    uint64_t n_, key_, rows_, columns_;
};

// When an epoch reads a shard: at positions [begin, end) or at some of them.
struct Visit {
    size_t shard;
    uint64_t begin, end;
    bool operator==(const Visit&) const = default;
};

// The order of an epoch: position → sample, both in [0, sum of `shards`).
class Order {
 public:
    // shards: samples in each shard; they are numbered one shard after the other. window 0 permutes
    // all samples. Another window permutes the shards, and then each block of `window` consecutive
    // samples, so that each shard is read once, within `window` samples.
    Order(std::span<const uint64_t> shards, uint64_t window, uint64_t seed, uint32_t epoch);
    uint64_t operator()(uint64_t position) const;
    std::vector<Visit> visits() const;  // all shards with samples, in the order of reading

 private:
    struct Place {  // of a shard in the epoch
        size_t shard;
        uint64_t end;         // position behind its last sample, before blocks are permuted
        uint64_t end_sample;  // number behind its last sample
    };
    uint64_t size_, window_, seed_;
    uint32_t epoch_;
    Permutation whole_;
    std::vector<Place> places_;  // in the epoch's order of shards; without a window as they are
};

// Parses --shuffle: "full" is 0, "window=N" is N. Throws Error.
uint64_t parse_shuffle(const std::string& text);

// The part of `rank` in a slice of `count` samples. The parts are contiguous, in the order of
// ranks, and together exactly [0, count), in proportion to `shares`: a weight per rank, not all 0.
Range share_of(int64_t count, std::span<const double> shares, int rank);

// The size of the largest part.
int64_t largest_share(int64_t count, std::span<const double> shares);

// For --shards mine, where rank r alone holds parts[r] samples of an epoch. Returns how many of the
// epoch's first `position` samples belong to `rank`. All ranks end together, as they advance in
// proportion to their parts. The sum over ranks is `position`. Results never fall as it rises.
int64_t dealt(int64_t position, std::span<const int64_t> parts, int rank);
// The most samples of `rank` among any `count` consecutive ones.
int64_t most_dealt(int64_t count, std::span<const int64_t> parts, int rank);

// Parses "5:3:2:0" into weights. "" gives `world` equal weights. Throws Error if the weights are no
// numbers, negative, all zero, or not one per rank.
std::vector<double> parse_shares(const std::string& text, int world);

}  // namespace convoy
