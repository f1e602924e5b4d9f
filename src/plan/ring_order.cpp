#include "src/plan/ring_order.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "src/base/check.h"
#include "src/base/text.h"
#include "src/job/exchange.h"

namespace convoy {

namespace {

constexpr double kDiffer = 2;        // links whose speeds differ by less are taken for equal
constexpr double kWorthwhile = 1.2;  // less is not worth another order

// The tour with the greatest score; all tours are tried, each in one direction.
template <typename Score>
std::vector<int> best_tour(size_t hosts, const Score& score) {
    std::vector<int> tour(hosts);
    std::iota(tour.begin(), tour.end(), 0);
    std::vector<int> best = tour;
    auto most = score(tour);
    while (std::next_permutation(tour.begin() + 1, tour.end()))
        if (tour[1] < tour.back())
            if (auto now = score(tour); now > most) best = tour, most = now;
    return best;
}

// link(one, other) for each link of the tour.
template <typename Link>
void for_each_link(const std::vector<int>& tour, const Link& link) {
    for (size_t i = 0; i < tour.size(); ++i) link(tour[i], tour[(i + 1) % tour.size()]);
}

// The ranks of each host, in the order of the first of them.
std::vector<std::vector<int>> ranks_by_host(const std::vector<Peer>& peers) {
    std::vector<std::vector<int>> hosts;
    for (const Peer& peer : peers) {
        const auto host = std::ranges::find_if(
            hosts, [&](const auto& ranks) { return peers[size_t(ranks[0])].host == peer.host; });
        if (host == hosts.end())
            hosts.push_back({peer.rank});
        else
            host->push_back(peer.rank);
    }
    return hosts;
}

double mbit(double bytes_per_second) { return bytes_per_second * 8e-6; }

}  // namespace

void LinkSpeeds::measured(int one, int other, double bytes_per_second) {
    double& speed = speeds_[size_t(one)][size_t(other)];
    speed = speed > 0 ? std::min(speed, bytes_per_second) : bytes_per_second;
    speeds_[size_t(other)][size_t(one)] = speed;
}

double LinkSpeeds::slowest(const std::vector<int>& tour) const {
    double slowest = at(tour[0], tour.back());
    for_each_link(tour, [&](int a, int b) { slowest = std::min(slowest, at(a, b)); });
    return slowest;
}

int LinkSpeeds::unknown(const std::vector<int>& tour) const {
    int count = 0;
    for_each_link(tour, [&](int a, int b) { count += at(a, b) == 0; });
    return count;
}

std::vector<int> fastest_tour(const LinkSpeeds& speeds) {
    return best_tour(speeds.hosts(), [&](const std::vector<int>& tour) {
        double seconds = 0;  // of a byte, link after link
        for_each_link(tour, [&](int a, int b) { seconds += 1 / speeds.at(a, b); });
        return std::tuple(speeds.slowest(tour), -seconds);
    });
}

std::vector<int> exploring_tour(const LinkSpeeds& speeds) {
    return best_tour(speeds.hosts(),
                     [&](const std::vector<int>& tour) { return speeds.unknown(tour); });
}

void RingSearch::look_at(JobSession& job) {
    wanted_.clear();
    Communicator& communicator = job.communicator();
    if (job.is_newcomer() || communicator.min_world() == 0) return;
    const size_t hosts = ranks_by_host(job.peers()).size();
    if (hosts < 4 || hosts > kMostHosts) return;
    // Only rank 0 knows how far the search is: where any other rank is lost, it begins anew.
    if (job.world() != world_) world_ = job.world(), speeds_ = LinkSpeeds(hosts), begun_ = false;
    const bool begins = !done_ && job.config.preflight != Toggle::kOff;
    if (broadcast_text(communicator, begins ? "measure" : "").empty()) return;
    if (const int signal = job.stop()) fail("stopped by signal ", signal, " before the job began");
    communicator.set_progress(0, Phase::kMeasure);
    const std::vector<EdgeTiming> edges = communicator.measure_edges();
    if (job.rank() == 0) wanted_ = next_ring(job, edges);
    if (broadcast_text(communicator, join_text(wanted_)).empty()) return;
    communicator.barrier();  // all know it
    throw RingBroken("the ranks form a ring in another order");
}

// On rank 0. {}: the ring stays as it is.
std::vector<int> RingSearch::next_ring(JobSession& job, const std::vector<EdgeTiming>& edges) {
    const auto hosts = ranks_by_host(job.peers());
    std::vector<int> host_of(job.peers().size());
    for (size_t host = 0; host < hosts.size(); ++host)
        for (const int rank : hosts[host]) host_of[size_t(rank)] = int(host);
    double slowest = 0, fastest = 0;
    for (const EdgeTiming& edge : edges) {
        const int from = host_of[size_t(edge.from)], to = host_of[size_t(edge.to)];
        if (from == to) continue;
        speeds_.measured(from, to, edge.bytes_per_second);
        if (slowest == 0) slowest = edge.bytes_per_second;
        slowest = std::min(slowest, edge.bytes_per_second);
        fastest = std::max(fastest, edge.bytes_per_second);
    }
    if (!std::exchange(begun_, true)) {
        done_ = fastest < kDiffer * slowest;
        if (done_) return {};
        job.log.notice(
            fmt::format("links differ ({:.0f} to {:.0f} Mbit/s): measuring those that the ring "
                        "does not use, for a faster order",
                        mbit(slowest), mbit(fastest)));
    }
    std::vector<int> tour = exploring_tour(speeds_);
    done_ = speeds_.unknown(tour) == 0;
    double best = 0, as_joined = 0;
    if (done_) {
        std::vector<int> joined(hosts.size());
        std::iota(joined.begin(), joined.end(), 0);
        tour = fastest_tour(speeds_);
        best = speeds_.slowest(tour), as_joined = speeds_.slowest(joined);
        if (best < kWorthwhile * as_joined) tour = joined;
    }
    std::vector<int> ring;
    for (const int host : tour)
        ring.insert(ring.end(), hosts[size_t(host)].begin(), hosts[size_t(host)].end());
    if (done_)
        job.log.notice(
            best < kWorthwhile * as_joined
                ? fmt::format(
                      "no other order of the ring is faster: its slowest link carries {:.0f} "
                      "Mbit/s",
                      mbit(as_joined))
                : fmt::format(
                      "the ring goes by ranks {}: its slowest link carries {:.0f} Mbit/s, in "
                      "place of {:.0f} in the order of joining",
                      join_text(ring), mbit(best), mbit(as_joined)));
    return ring;
}

}  // namespace convoy
