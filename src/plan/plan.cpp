#include "src/plan/plan.h"

#include <algorithm>
#include <cmath>

#include "data/order.h"
#include "src/base/check.h"

namespace convoy {

LinkTiming slowest_link(std::span<const LinkTiming> links) {
    if (links.empty()) return {};
    LinkTiming slowest = *std::ranges::min_element(links, {}, &LinkTiming::bytes_per_second);
    slowest.latency_seconds =
        std::ranges::max_element(links, {}, &LinkTiming::latency_seconds)->latency_seconds;
    return slowest;
}

// A bucket of s bytes takes 2(W-1)/W·s/bandwidth + 2(W-1)·latency. The second part is 4 % of the
// first at s = 25·W·latency·bandwidth.
size_t bucket_bytes_for(std::span<const LinkTiming> links, int world) {
    constexpr double kLeast = 1 << 20, kMost = 25 << 20;
    const LinkTiming link = slowest_link(links);
    return size_t(
        std::clamp(25.0 * world * link.latency_seconds * link.bytes_per_second, kLeast, kMost));
}

Forecast forecast(const JobTiming& timing, const Way& way, int64_t batch,
                  std::span<const double> shares) {
    Forecast result{int(shares.size()), &way};
    double S = 0, N = 0, speed = 0;
    for (int r = 0; r < result.ranks; ++r) {
        const RankTiming& rank = timing.ranks[size_t(r)];
        const int64_t images = share_of(batch, shares, r).size();
        const double its = result.ranks == 1 && rank.alone > 0 ? rank.alone : rank.together;
        ENSURE(its > 0, "rank ", r, " was not timed");
        if (images > 0) S = std::max(S, double(images) / its), speed += its;
    }
    if (const int W = result.ranks; W > 1) {
        const double mean = 2.0 * (W - 1) / W * timing.gradient_bytes / way.every;
        const double sent = way.every > 1 ? mean : timing.sent_bytes[size_t(W)];
        N = sent * (way.bf16 ? 0.5 : 1) / timing.bytes_per_second;
    }
    const double buckets = std::max(1.0, timing.gradient_bytes / double(timing.bucket_bytes));
    result.compute_seconds = S, result.network_seconds = N;
    result.step_seconds = way.every > 1 ? S + N : std::max(S + N / buckets, S / 3 + N);
    result.images_per_second = double(batch) / result.step_seconds;
    result.efficiency = result.images_per_second / speed;
    return result;
}

std::vector<double> fair_shares(const JobTiming& timing, int ranks) {
    std::vector<double> shares;
    for (int r = 0; r < ranks; ++r) shares.push_back(timing.ranks[size_t(r)].together);
    const double largest = std::ranges::max(shares);
    for (double& share : shares) share = std::round(100 * share / largest) / 100;
    return shares;
}

// Values below `part` times the upper quartile are slow. So a few slow values are found, and one
// very fast value does not make the others look slow.
template <class T>
static double slow_below(double part, const std::vector<T>& all, double T::*member) {
    std::vector<double> values;
    for (const T& one : all) values.push_back(one.*member);
    std::ranges::sort(values, std::greater());
    return values.empty() ? 0 : part * values[values.size() / 4];
}

std::vector<std::string> plan_warnings(const JobTiming& timing, std::span<const Peer> peers,
                                       int64_t batch, std::span<const double> shares) {
    const auto rank_text = [&](int rank) {
        const bool is_known = size_t(rank) < peers.size();
        return cat("rank ", rank, is_known ? cat(" (", peers[size_t(rank)].address, ")") : "");
    };
    std::vector<std::string> warnings;
    // Links within a machine are loopback or shared memory: nobody can repair them.
    std::vector<LinkTiming> slow;
    for (const LinkTiming& link : timing.links)
        if (timing.ranks[size_t(link.from)].machine != timing.ranks[size_t(link.to)].machine)
            slow.push_back(link);
    const double slow_link = slow_below(0.5, slow, &LinkTiming::bytes_per_second);
    std::erase_if(slow, [&](const LinkTiming& e) { return e.bytes_per_second >= slow_link; });
    const Forecast now = forecast(timing, kWays[0], batch, shares);
    if (now.step_seconds < 1.1 * now.compute_seconds) slow.clear();
    // A bad cable or card slows down all links of a rank, and no others.
    const auto touch_all = [&](int rank) {
        return std::ranges::all_of(
            slow, [&](const LinkTiming& e) { return e.from == rank || e.to == rank; });
    };
    for (const LinkTiming& link : slow) {
        const bool is_rank = slow.size() > 2 && (touch_all(link.from) || touch_all(link.to));
        warnings.push_back(fmt::format(
            "{} far slower than the others ({:.0f} Mbit/s): check the cable, the network card and "
            "the switch port",
            is_rank
                ? cat("all links of ", rank_text(touch_all(link.from) ? link.from : link.to),
                      " are")
                : cat("the link from ", rank_text(link.from), " to ", rank_text(link.to), " is"),
            mbit_per_second(link)));
        if (is_rank) break;
    }
    const double slow_rank = slow_below(0.6, timing.ranks, &RankTiming::together);
    for (size_t rank = 0; rank < timing.ranks.size(); ++rank)
        if (const double speed = timing.ranks[rank].together; speed < slow_rank)
            warnings.push_back(fmt::format(
                "{} computes {:.1f} img/s, far slower than the others (over {:.1f}): --share auto "
                "gives it fewer images",
                rank_text(int(rank)), speed, slow_rank));
    return warnings;
}

}  // namespace convoy
