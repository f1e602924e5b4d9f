// order.cpp — the permutation of an epoch and its division among the ranks.
#include "data/order.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <utility>

#include "src/base/check.h"
#include "src/base/random.h"
#include "src/base/text.h"

namespace convoy {

std::vector<uint32_t> epoch_order(size_t n, uint64_t seed, uint32_t epoch) {
    ENSURE(n <= UINT32_MAX, n, " samples");
    std::vector<uint32_t> order(n);
    std::iota(order.begin(), order.end(), 0u);
    Random random(seed, epoch, 0, kOrder);
    for (size_t i = n; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    return order;
}

// The boundary before rank r is count · (weights before r) / (all weights), rounded. A boundary
// belongs to both of its neighbours, so nothing is lost or taken twice. No product is followed by a
// sum, which one compiler contracts and another does not: every machine finds the same ones.
Range share_of(int64_t count, std::span<const double> shares, int rank) {
    ENSURE(rank >= 0 && size_t(rank) < shares.size(), "rank ", rank, " of ", shares.size());
    double before = 0, all = 0;
    for (size_t r = 0; r < shares.size(); ++r) {
        if (int(r) == rank) before = all;
        all += shares[r];
    }
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

std::vector<double> parse_shares(const std::string& text, int world) {
    ENSURE(world >= 1, "world of ", world);
    if (text.empty()) return std::vector<double>(size_t(world), 1.0);
    std::vector<double> shares;
    for (const std::string& part : split(text, ':')) {
        double weight = 0;
        const char* const end = part.data() + part.size();
        const auto [stop, error] =
            std::from_chars(part.data(), end, weight, std::chars_format::fixed);
        if (error != std::errc() || stop != end || !std::isfinite(weight))
            fail("shares '", text, "': '", part,
                 "' is not a number; give one weight a rank, such as 5:3:2:0");
        if (weight < 0) fail("shares '", text, "': ", weight, " is negative");
        shares.push_back(weight);
    }
    if (shares.size() != size_t(world))
        fail("shares '", text, "' are ", shares.size(), " weights for a world of ", world,
             " ranks");
    if (!(std::accumulate(shares.begin(), shares.end(), 0.0) > 0))
        fail("shares '", text, "' are all 0: nobody would train");
    return shares;
}

}  // namespace convoy
