// plan.h — forecasts the speed of a job from what was measured. No sockets, no tensors.
//
//   one rank     │ forward S/3 │      backward 2S/3      │     S seconds of computing per step
//   network                      │ bucket │ bucket │ … │ last │
//
//   N = bytes sent per rank / measured speed of a sum
//   T = max( S + N/buckets,  S/3 + N )
//
// All buckets except the last are sent during the backward pass. S is the slowest rank's time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "net/ring/communicator.h"
#include "src/config/config.h"

namespace convoy {

struct RankTiming {
    std::string machine;  // the same for ranks that share processors
    int threads = 0;
    // Images per second without the network: while all ranks compute, and while only rank 0
    // computes (0: not measured).
    double together = 0, alone = 0;
};

// Everything that was measured (timing.h). The same on every rank, except bytes_per_second.
struct JobTiming {
    std::vector<LinkTiming> links;
    size_t bucket_bytes = kDefaultBucketBytes;
    double bytes_per_second = 0;  // sent by each rank while a bucket is summed
    double gradient_bytes = 0;    // fp32
    // [k]: bytes that each of k ranks sends per step; fewer if factors replace gradients.
    std::vector<double> sent_bytes;
    std::vector<RankTiming> ranks;
};

// The link with the least bandwidth, and the largest latency of any link; all 0 without links.
LinkTiming slowest_link(std::span<const LinkTiming> links);
// The bucket size with which latency is 4 % of a bucket's time on that link; 1 to 25 MB.
size_t bucket_bytes_for(std::span<const LinkTiming> links, int world);

// A way to send gradients or weights.
struct Way {
    const char *name, *options;
    bool bf16 = false;
    int every = 1;  // steps from one sum to the next, if weights are averaged (DiLoCo)
};
inline constexpr Way kWays[] = {{"fp32", "--wire fp32"},
                                {"bf16", "--wire bf16", true},
                                {"DiLoCo", "--sync diloco:20", false, 20}};

struct Forecast {
    int ranks = 1;
    const Way* way = &kWays[0];
    double step_seconds = 0, compute_seconds = 0, network_seconds = 0;  // T, S, N of the formula
    double images_per_second = 0;
    double efficiency = 0;  // relative to the same ranks without a network
};
// A step of the first ranks; `shares` has the share of each.
Forecast forecast(const JobTiming& timing, const Way& way, int64_t batch,
                  std::span<const double> shares);

// Shares of the first ranks in proportion to their speeds, so that all need the same time. The
// largest share is 1; the others are rounded to hundredths.
std::vector<double> fair_shares(const JobTiming& timing, int ranks);

inline double mbit_per_second(const LinkTiming& link) { return link.bytes_per_second * 8 / 1e6; }
// A sentence for each link between machines that is far slower than the others and delays the
// ranks, and for each rank that computes far slower than the others.
std::vector<std::string> plan_warnings(const JobTiming& timing, std::span<const Peer> peers,
                                       int64_t batch, std::span<const double> shares);

}  // namespace convoy
