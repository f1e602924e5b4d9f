// ring_order.h — the order of the ranks around the ring, by measured links between their hosts.
//
// The ring is as fast as its slowest edge. Where links differ, a tour that leaves the slow ones out
// may be faster: the one whose slowest link is fastest (the bottleneck travelling salesman problem,
// here by trying every tour).
//
//   ring as joined ─► measure_edges ─► do they differ? ─► rings over links not measured yet, each
//                                                         measured ─► the fastest tour
#pragma once

#include <vector>

#include "src/job/job_session.h"

namespace convoy {

// Bytes per second between any two of n hosts, the slower direction; 0: not measured.
class LinkSpeeds {
 public:
    explicit LinkSpeeds(size_t hosts = 0) : speeds_(hosts, std::vector<double>(hosts)) {}
    size_t hosts() const { return speeds_.size(); }
    double at(int one, int other) const { return speeds_[size_t(one)][size_t(other)]; }
    void measured(int one, int other, double bytes_per_second);
    double slowest(const std::vector<int>& tour) const;  // of its links
    int unknown(const std::vector<int>& tour) const;     // links not measured

 private:
    std::vector<std::vector<double>> speeds_;
};

// At most this many hosts: there are (n-1)!/2 tours.
constexpr size_t kMostHosts = 9;
// The tour, from host 0 on, with the fastest slowest link; of those the one that takes the least
// time link after link. All links are known.
std::vector<int> fastest_tour(const LinkSpeeds& speeds);
// The tour with the most links that are not known.
std::vector<int> exploring_tour(const LinkSpeeds& speeds);

// Before the job is set up, on every rank. What is known is with rank 0.
class RingSearch {
 public:
    // Collective among all ranks but newcomers. Returns where the ring may stay as it is: fewer
    // than 4 hosts have one tour; more than kMostHosts are not tried; --elastic off and --preflight
    // off forbid it. Else throws RingBroken on every rank: to be followed by a regroup with
    // wanted(), and another call.
    void look_at(JobSession& job);
    const std::vector<int>& wanted() const { return wanted_; }  // ranks; {} but on rank 0

 private:
    std::vector<int> next_ring(JobSession& job, const std::vector<EdgeTiming>& edges);

    bool done_ = false;
    int world_ = 0;  // that speeds_ is of
    bool begun_ = false;
    LinkSpeeds speeds_;
    std::vector<int> wanted_;
};

}  // namespace convoy
