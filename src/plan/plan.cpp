// plan.cpp — see plan.h.
#include "src/plan/plan.h"

#include <algorithm>
#include <cmath>

#include "data/order.h"
#include "src/base/check.h"
#include "src/base/text.h"

namespace convoy {

double seconds_at(std::span<const StepTime> times, double images) {
    ENSURE(!times.empty(), "no step was timed");
    if (images <= 0) return 0;
    const auto [few, many] = std::ranges::minmax(times, {}, &StepTime::images);
    const double more = many.images - few.images;
    if (more <= 0) return few.seconds * images / few.images;
    const double slope = std::max(0.0, (many.seconds - few.seconds) / more);
    if (images < few.images && few.seconds < slope * few.images)
        return few.seconds * images / few.images;
    return few.seconds + slope * (images - few.images);
}

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

// A bucket of s bytes takes 2(W-1)/W·s/bandwidth + 2(W-1)·latency; the second part is 4 % of the
// first at s = 25·W·latency·bandwidth.
size_t bucket_bytes_for(std::span<const EdgeTiming> edges, int world) {
    constexpr double kLeast = 1 << 20, kMost = 25 << 20;
    const EdgeTiming edge = slowest_edge(edges, world);
    return size_t(
        std::clamp(25.0 * world * edge.latency_seconds * edge.bytes_per_second, kLeast, kMost));
}

static double buckets_of(const JobTiming& timing) {
    return std::max(1.0, timing.gradient_bytes / double(timing.bucket_bytes));
}

double network_seconds(const JobTiming& timing, int ranks, const Way& way) {
    if (ranks < 2) return 0;
    const double all = 2.0 * (ranks - 1) / ranks * timing.gradient_bytes;
    const double sent = way.every > 1 ? all / way.every : timing.sent_bytes[size_t(ranks)];
    return sent * (way.bf16 ? 0.5 : 1) / timing.bytes_per_second;
}

// S of a rank, where `ranks` compute.
static double compute_seconds(const JobTiming& timing, int rank, int ranks, double images) {
    const RankTiming& one = timing.ranks[size_t(rank)];
    return seconds_at(ranks == 1 && !one.alone.empty() ? one.alone : one.together, images);
}

Forecast forecast(const JobTiming& timing, const Way& way, int64_t batch,
                  std::span<const double> shares) {
    Forecast result{int(shares.size()), &way};
    double S = 0, speed = 0;
    for (int rank = 0; rank < result.ranks; ++rank) {
        const double images = double(share_of(batch, shares, rank).size());
        const double seconds = compute_seconds(timing, rank, result.ranks, images);
        if (images > 0) S = std::max(S, seconds), speed += images / seconds;
    }
    const double N = network_seconds(timing, result.ranks, way);
    const double hidden = std::max(S + N / buckets_of(timing), S / 3 + N);
    result.compute_seconds = S;
    result.step_seconds = result.ranks == 1 ? S
                          : way.every > 1   ? S + N
                                            : std::max(S, timing.contention * hidden);
    result.images_per_second = double(batch) / result.step_seconds;
    result.efficiency = result.images_per_second / speed;
    return result;
}

std::vector<double> compute_speeds(const JobTiming& timing, int64_t batch,
                                   std::span<const double> shares) {
    std::vector<double> speeds;
    for (const RankTiming& rank : timing.ranks) {
        const auto part = share_of(batch, shares, int(speeds.size())).size();
        const double images = double(std::max<int64_t>(1, part));
        speeds.push_back(images / seconds_at(rank.together, images));
    }
    return speeds;
}

// Rank r needs f_r + c_r·b seconds for b images. All need T for b_r = max(0, (T − f_r)/c_r), and
// Σ b_r = B: T is found by bisection.
std::vector<double> fair_shares(const JobTiming& timing, int ranks, int64_t batch) {
    std::vector<double> images(static_cast<size_t>(ranks));
    double least = 0, most = 1e9;
    for (int halvings = 0; halvings < 100; ++halvings) {
        const double T = (least + most) / 2;
        double all = 0;
        for (int r = 0; r < ranks; ++r) {
            const double one = compute_seconds(timing, r, ranks, 1);
            const double per_image = std::max(compute_seconds(timing, r, ranks, 2) - one, 1e-9);
            const double fixed = std::max(0.0, one - per_image);
            all += images[size_t(r)] = std::max(0.0, (T - fixed) / per_image);
        }
        (all < double(batch) ? least : most) = T;
    }
    const double largest = std::ranges::max(images);
    for (double& share : images) share = std::round(100 * share / largest) / 100;
    return images;
}

std::string shares_text(std::span<const double> shares) { return join_text(shares, ":"); }

double mbit_per_second(const EdgeTiming& edge) { return edge.bytes_per_second * 8 / 1e6; }

// Below `part` of the upper quarter of all: a few slow ones are found, while a single one far above
// the others does not make the others look slow.
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
    // Links within a machine are loopback or shared memory: nothing can be mended there.
    std::vector<EdgeTiming> between;
    std::vector<double> link_speeds;
    for (const EdgeTiming& edge : timing.edges)
        if (timing.ranks[size_t(edge.from)].machine != timing.ranks[size_t(edge.to)].machine)
            between.push_back(edge), link_speeds.push_back(edge.bytes_per_second);
    const Forecast now = forecast(timing, kWays[0], batch, shares);
    if (now.step_seconds < 1.1 * now.compute_seconds) between.clear();
    std::erase_if(between, [&](const EdgeTiming& edge) {
        return !far_below(edge.bytes_per_second, link_speeds, 0.5);
    });
    // A bad cable or card shows in all edges of a rank, and in no others.
    for (int rank = 0; rank < int(timing.ranks.size()); ++rank) {
        const auto touches = [&](const EdgeTiming& e) { return e.from == rank || e.to == rank; };
        if (between.size() < 3 || !std::ranges::all_of(between, touches)) continue;
        warnings.push_back(fmt::format(
            "all links of {} are far slower than the others ({:.0f} Mbit/s): check its cable, its "
            "network card and its port of the switch",
            rank_text(rank), mbit_per_second(between[0])));
        between.clear();
    }
    for (const EdgeTiming& edge : between)
        warnings.push_back(
            fmt::format("the link from {} to {} is far slower than the others: {:.0f} Mbit/s",
                        rank_text(edge.from), rank_text(edge.to), mbit_per_second(edge)));
    const std::vector<double> speeds = compute_speeds(timing, batch, shares);
    for (size_t rank = 0; rank < speeds.size(); ++rank)
        if (far_below(speeds[rank], speeds, 0.6))
            warnings.push_back(fmt::format(
                "{} computes far slower than the others: {:.1f} of {:.1f} img/s; --share auto "
                "gives it fewer images",
                rank_text(int(rank)), speeds[rank], std::ranges::max(speeds)));
    return warnings;
}

}  // namespace convoy
