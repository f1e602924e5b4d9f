// job_timing.h — before training: measure every edge, every rank, and what compute and network cost
// each other.
//
// All ranks measure together, so ranks that share a machine or a switch are measured as they will
// train:
//
//   edges     one after the other, both directions (net/probe.cpp)
//   sum       of one bucket, while nobody computes
//   compute   steps without network, in rounds: the first rank of each machine by itself, the first
//             two at once, … all at once. Predictions for fewer ranks need the earlier rounds
//   overlap   all ranks compute while sums go on: how much each slows the other down
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/plan/step_probe.h"

namespace convoy {

struct RankTiming {
    std::string machine;  // the same for ranks that share processors
    int threads = 0;
    // rounds[i]: steps with two numbers of images, while the first JobTiming::rounds[i] ranks of
    // each machine compute; empty where this rank is not among them.
    std::vector<std::vector<StepTiming>> rounds;
};

struct JobTiming {
    std::vector<EdgeTiming> edges;
    PlanLink link;  // of the slowest edge
    size_t bucket_bytes = kDefaultBucketBytes;
    std::vector<int> rounds;  // ranks of a machine that computed at once; the last: all
    std::vector<RankTiming> ranks;
    std::vector<PlanParam> params;
    size_t exact_floats = 0, average_floats = 0;
};

struct TimingOptions {
    int64_t batch = 0;
    std::vector<double> shares;  // of all ranks
    size_t bucket_bytes = 0;     // --bucket; 0: from the link
    bool bf16 = false;           // --wire bf16
    int threads = 0;             // of this rank
    bool brief = true;           // a second or two and one round; else a second a round
    std::function<int()> stop;   // polled in between: a signal on any rank ends all by an Error
};

// Collective: every rank calls it with the same options (but `threads`) and gets the same result.
JobTiming time_job(Communicator& communicator, StepProbe& probe, const TimingOptions& options);

// Images a second of each rank without network, while all ranks compute their part of the batch.
std::vector<double> compute_speeds(const JobTiming& timing, int64_t batch,
                                   const std::vector<double>& shares);
// Steps of the first `ranks` ranks, while just these compute.
std::vector<std::vector<StepTiming>> timings_of(const JobTiming& timing, int ranks);
// The shares for `--share auto` (plan.h). Collective: rank 0's, so that all have the same bits.
std::vector<double> fair_shares(Communicator& communicator, const JobTiming& timing, int64_t batch);
// The job of the first ranks; shares: one weight each. Ranks of one machine with as many threads
// and images count as their mean: they take turns, and what one loses another gains.
PlanJob plan_job(const JobTiming& timing, int64_t batch, std::vector<double> shares,
                 int64_t sync_every = 1);

}  // namespace convoy
