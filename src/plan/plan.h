// plan.h — how fast a job will be: one formula over what was measured. No sockets, no tensors.
//
//   one rank     │ forward S/3 │      backward 2S/3      │     S seconds compute a step
//   network                      │ bucket │ bucket │ … │ last │
//
//   N = sent bytes / measured speed of a sum
//   T = contention · max( S + N/buckets,  S/3 + N ),  but at least S
//
// Buckets are sent while the backward pass goes on, and the last one can only follow it. S is that
// of the slowest rank. contention: measured seconds of real steps by those of the formula, for what
// the ring and the ranks take from each other on the cores that they share.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "net/communicator.h"
#include "src/train/buckets.h"

namespace convoy {

// Seconds of a step of one rank at a number of images, without the network.
struct StepTime {
    double images = 0, seconds = 0;
};
// On the line through the step times with the fewest and the most images. Below the fewest, where
// that line would reach 0 too early, and with one step time only, in proportion.
double seconds_at(std::span<const StepTime> times, double images);

struct RankTiming {
    std::string machine;  // the same for ranks that share processors
    int threads = 0;
    // While only rank 0 computes (empty on the other ranks), and while all do.
    std::vector<StepTime> alone, together;
};

// All that was measured (measure_job); the same on every rank.
struct JobTiming {
    std::vector<EdgeTiming> edges;
    size_t bucket_bytes = kDefaultBucketBytes;
    double bytes_per_second = 0;  // that each rank sends while a bucket is summed
    double contention = 1;
    double gradient_bytes = 0;  // fp32
    // [k]: bytes that each of k ranks sends in a step, fewer where factors replace gradients.
    std::vector<double> sent_bytes;
    std::vector<RankTiming> ranks;
};

// The size of a bucket: latency takes 4 % of its time on the slowest edge of the ring; 1 to 25 MB.
size_t bucket_bytes_for(std::span<const EdgeTiming> edges, int world);

// The slowest edge among the first `ranks` ranks; all 0 where there is none.
EdgeTiming slowest_edge(std::span<const EdgeTiming> edges, int ranks);

// A way to send what is learned.
struct Way {
    const char *name, *options;
    bool bf16 = false;
    int every = 1;  // steps from one sum to the next: weights are averaged (DiLoCo)
};
inline constexpr Way kWays[] = {{"fp32", "--wire fp32"},
                                {"bf16", "--wire bf16", true},
                                {"DiLoCo", "--sync diloco:20", false, 20}};

// N, for `ranks` ranks.
double network_seconds(const JobTiming& timing, int ranks, const Way& way);

struct Forecast {
    int ranks = 1;
    const Way* way = &kWays[0];
    double step_seconds = 0, compute_seconds = 0;
    double images_per_second = 0;
    double efficiency = 0;  // part of what these ranks compute without network
};
// A step of the first ranks, one for each of `shares`.
Forecast forecast(const JobTiming& timing, const Way& way, int64_t batch,
                  std::span<const double> shares);

// Images a second of each rank, without network, while all compute their share of the batch.
std::vector<double> compute_speeds(const JobTiming& timing, int64_t batch,
                                   std::span<const double> shares);

// Shares with which the first ranks need the same time for their part of the batch, as weights
// relative to the largest, in hundredths.
std::vector<double> fair_shares(const JobTiming& timing, int ranks, int64_t batch);
std::string shares_text(std::span<const double> shares);  // "1:0.52:0.5", as --share takes them

double mbit_per_second(const EdgeTiming& edge);
// A sentence for each link between machines that is far slower than the others and keeps the ranks
// waiting, and for each rank that computes far slower than the others.
std::vector<std::string> plan_warnings(const JobTiming& timing, std::span<const Peer> peers,
                                       int64_t batch, std::span<const double> shares);

}  // namespace convoy
