// plan.cpp — see plan.h.
#include "src/plan/plan.h"

#include <algorithm>
#include <cmath>

#include "data/order.h"
#include "src/base/check.h"
#include "src/base/text.h"

namespace convoy {

EdgeTiming slowest_edge(std::span<const EdgeTiming> edges, int ranks) {
    EdgeTiming slowest;
    for (const EdgeTiming& edge : edges) {
        if (edge.from >= ranks || edge.to >= ranks) continue;
        const double latency = std::max(slowest.latency_seconds, edge.latency_seconds);
        if (slowest.bytes_per_second == 0 || edge.bytes_per_second < slowest.bytes_per_second)
            slowest = edge;
        slowest.latency_seconds = latency;
    }
    return slowest;
}

// A bucket of s bytes takes 2(W-1)/W·s/bandwidth + 2(W-1)·latency. The second part is 4 % of the
// first at s = 25·W·latency·bandwidth.
size_t bucket_bytes_for(std::span<const EdgeTiming> edges, int world) {
    constexpr double kLeast = 1 << 20, kMost = 25 << 20;
    const EdgeTiming edge = slowest_edge(edges, world);
    return size_t(
        std::clamp(25.0 * world * edge.latency_seconds * edge.bytes_per_second, kLeast, kMost));
}

double network_seconds(const JobTiming& timing, int ranks, const Way& way) {
    if (ranks < 2) return 0;
    const double all = 2.0 * (ranks - 1) / ranks * timing.gradient_bytes;
    const double sent = way.every > 1 ? all / way.every : timing.sent_bytes[size_t(ranks)];
    return sent * (way.bf16 ? 0.5 : 1) / timing.bytes_per_second;
}

Forecast forecast(const JobTiming& timing, const Way& way, int64_t batch,
                  std::span<const double> shares) {
    Forecast result{int(shares.size()), &way};
    double S = 0, speed = 0;
    for (int r = 0; r < result.ranks; ++r) {
        const RankTiming& rank = timing.ranks[size_t(r)];
        const int64_t images = share_of(batch, shares, r).size();
        const double its = result.ranks == 1 && rank.alone > 0 ? rank.alone : rank.together;
        ENSURE(its > 0, "rank ", r, " was not timed");
        if (images > 0) S = std::max(S, double(images) / its), speed += its;
    }
    const double N = network_seconds(timing, result.ranks, way);
    const double buckets = std::max(1.0, timing.gradient_bytes / double(timing.bucket_bytes));
    result.compute_seconds = S;
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

std::string shares_text(std::span<const double> shares) { return join_text(shares, ":"); }

double mbit_per_second(const EdgeTiming& edge) { return edge.bytes_per_second * 8 / 1e6; }

// Values below `part` times the upper quartile are slow. So a few slow values are found, and one
// very fast value does not make the others look slow.
static bool far_below(double value, std::vector<double> all, double part) {
    std::ranges::sort(all, std::greater());
    return value < part * all[all.size() / 4];
}

std::vector<std::string> plan_warnings(const JobTiming& timing, std::span<const Peer> peers,
                                       int64_t batch, std::span<const double> shares) {
    const auto rank_text = [&](int rank) {
        return size_t(rank) < peers.size()
                   ? cat("rank ", rank, " (", peers[size_t(rank)].address, ")")
                   : cat("rank ", rank);
    };
    std::vector<std::string> warnings;
    // Links within a machine are loopback or shared memory: nobody can repair them.
    std::vector<EdgeTiming> between;
    std::vector<double> link_speeds, speeds;
    for (const EdgeTiming& edge : timing.edges)
        if (timing.ranks[size_t(edge.from)].machine != timing.ranks[size_t(edge.to)].machine)
            between.push_back(edge), link_speeds.push_back(edge.bytes_per_second);
    const Forecast now = forecast(timing, kWays[0], batch, shares);
    if (now.step_seconds < 1.1 * now.compute_seconds) between.clear();
    std::erase_if(between, [&](const EdgeTiming& edge) {
        return !far_below(edge.bytes_per_second, link_speeds, 0.5);
    });
    // A bad cable or card slows down all edges of a rank, and no others.
    for (int rank = 0; rank < int(timing.ranks.size()); ++rank) {
        const auto touches = [&](const EdgeTiming& e) { return e.from == rank || e.to == rank; };
        if (between.size() < 3 || !std::ranges::all_of(between, touches)) continue;
        warnings.push_back(fmt::format(
            "all links of {} are far slower than the others ({:.0f} Mbit/s): check its cable, its "
            "network card and its switch port",
            rank_text(rank), mbit_per_second(between[0])));
        between.clear();
    }
    for (const EdgeTiming& edge : between)
        warnings.push_back(fmt::format(
            "the link from {} to {} is far slower than the others ({:.0f} Mbit/s): check it",
            rank_text(edge.from), rank_text(edge.to), mbit_per_second(edge)));
    for (const RankTiming& rank : timing.ranks) speeds.push_back(rank.together);
    for (size_t rank = 0; rank < speeds.size(); ++rank)
        if (far_below(speeds[rank], speeds, 0.6))
            warnings.push_back(fmt::format(
                "{} computes far slower than the others ({:.1f} of {:.1f} img/s): --share auto "
                "gives it fewer images",
                rank_text(int(rank)), speeds[rank], std::ranges::max(speeds)));
    return warnings;
}

}  // namespace convoy
