// order.cpp — the permutation of an epoch and its division among the ranks.
#include "data/order.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/base/random.h"
#include "src/base/text.h"

namespace convoy {

Permutation::Permutation(uint64_t n, uint64_t key) : n_(n), key_(key) {
    rows_ = uint64_t(std::sqrt(double(n)));
    while (rows_ * rows_ < n) ++rows_;
    columns_ = rows_ == 0 ? 0 : (n + rows_ - 1) / rows_;
}

uint64_t Permutation::operator()(uint64_t i) const {
    ENSURE(i < n_, i, " of ", n_);
    const auto shift = [&](uint64_t& half, uint64_t bound, uint32_t round, uint64_t other) {
        half += Random(key_, round, other, kOrder).below(bound);
        if (half >= bound) half -= bound;
    };
    do {
        uint64_t row = i / columns_, column = i % columns_;
        for (uint32_t round = 0; round < 8; round += 2) {
            shift(row, rows_, round, column);
            shift(column, columns_, round + 1, row);
        }
        i = row * columns_ + column;
    } while (i >= n_);
    return i;
}

// Keys of an epoch's permutations: of the whole set, of its shards, of its blocks.
static uint64_t key_of(uint64_t seed, uint32_t epoch, uint64_t which) {
    return Random(seed, epoch, which, kOrder).bits64();
}

Order::Order(std::span<const uint64_t> shards, uint64_t window, uint64_t seed, uint32_t epoch)
    : size_(std::accumulate(shards.begin(), shards.end(), uint64_t(0))),
      window_(window),
      seed_(seed),
      epoch_(epoch),
      whole_(size_, key_of(seed, epoch, 0)) {
    std::vector<uint64_t> ends(shards.size());
    std::partial_sum(shards.begin(), shards.end(), ends.begin());
    const Permutation permutation(shards.size(), key_of(seed, epoch, 1));
    uint64_t end = 0;
    for (size_t i = 0; i < shards.size(); ++i) {
        const size_t shard = window == 0 ? i : permutation(i);
        end += shards[shard];
        places_.push_back({shard, end, ends[shard]});
    }
}

std::vector<Visit> Order::visits() const {
    const uint64_t block = window_ == 0 ? size_ : window_;
    std::vector<Visit> all;
    uint64_t begin = 0;
    for (const Place& place : places_) {
        const uint64_t end = (place.end + block - 1) / std::max<uint64_t>(block, 1) * block;
        if (place.end > begin)
            all.push_back({place.shard, begin / block * block, std::min(end, size_)});
        begin = place.end;
    }
    return all;
}

uint64_t Order::operator()(uint64_t position) const {
    if (window_ == 0) return whole_(position);
    ENSURE(position < size_, position, " of ", size_);
    const uint64_t block = position / window_, begin = block * window_;
    const Permutation within(std::min(window_, size_ - begin), key_of(seed_, epoch_, 2 + block));
    const uint64_t at = begin + within(position - begin);
    const Place& place = *std::ranges::upper_bound(places_, at, {}, &Place::end);
    return place.end_sample - (place.end - at);
}

uint64_t parse_shuffle(const std::string& text) {
    if (text == "full") return 0;
    const bool is_window = text.starts_with("window=");
    const uint64_t window = is_window ? to_number<uint64_t>(text.substr(7)).value_or(0) : 0;
    if (window == 0)
        fail("--shuffle cannot be '", text,
             "': it is full, or window=N to shuffle among N samples at a time");
    return window;
}

// The boundary before rank r is count · (weights before r) / (all weights), rounded. Both
// neighbours use the same boundary, so no sample is lost or taken twice. No sum follows a product,
// which some compilers contract and others do not, so every machine computes the same boundaries.
Range share_of(int64_t count, std::span<const double> shares, int rank) {
    ENSURE(rank >= 0 && size_t(rank) < shares.size(), "rank ", rank, " of ", shares.size());
    const double before = std::accumulate(shares.begin(), shares.begin() + rank, 0.0);
    const double all = std::accumulate(shares.begin() + rank, shares.end(), before);
    ENSURE(all > 0, "all shares are 0");
    const auto boundary = [&](double part) {
        return std::min(count, int64_t(std::floor(double(count) * part / all + 0.5)));
    };
    return {boundary(before), boundary(before + shares[size_t(rank)])};
}

int64_t largest_share(int64_t count, std::span<const double> shares) {
    int64_t most = 0;
    for (size_t r = 0; r < shares.size(); ++r)
        most = std::max(most, share_of(count, shares, int(r)).size());
    return most;
}

// Rank 0 gets its proportion of `left`, rounded down (or up). The ranks after it share the rest in
// the same way. As `left` grows by 1, the rounded proportion grows by 0 or 1, and so does the rest.
static int64_t deal(int64_t left, std::span<const int64_t> parts, int rank, bool up) {
    int64_t all = std::accumulate(parts.begin(), parts.end(), int64_t(0));
    ENSURE(up || left <= all, left, " of ", all);
    for (int r = 0;; ++r) {
        const int64_t part = parts[size_t(r)];
        const auto its = [&](int64_t more) {
            return all == 0 ? 0 : int64_t((__int128(left) * part + more) / all);
        };
        if (r == rank) return std::min(its(up ? all - 1 : 0), part);
        left -= its(0), all -= part;
    }
}

int64_t dealt(int64_t position, std::span<const int64_t> parts, int rank) {
    return deal(position, parts, rank, false);
}
int64_t most_dealt(int64_t count, std::span<const int64_t> parts, int rank) {
    return deal(count, parts, rank, true);
}

std::vector<double> parse_shares(const std::string& text, int world) {
    ENSURE(world >= 1, "world of ", world);
    if (text.empty()) return std::vector<double>(size_t(world), 1.0);
    std::vector<double> shares;
    for (const std::string& part : split(text, ':')) {
        const double weight = to_number<double>(part).value_or(NAN);
        if (!std::isfinite(weight))
            fail("shares '", text, "': '", part,
                 "' is not a number; give one weight per rank, such as 5:3:2:0");
        if (weight < 0) fail("shares '", text, "': ", weight, " is negative");
        shares.push_back(weight);
    }
    if (shares.size() != size_t(world))
        fail("shares '", text, "' are ", shares.size(), " weights for a world of ", world,
             " ranks, not counting ranks that have left");
    if (!(std::accumulate(shares.begin(), shares.end(), 0.0) > 0))
        fail("shares '", text, "' are all 0: give one rank a larger weight");
    return shares;
}

}  // namespace convoy
