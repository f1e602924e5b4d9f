// job_timing.h — before training: what each edge, each rank and both at once are worth.
//
// All ranks measure together, so that ranks which share a machine or a switch are measured as they
// will train. Phase by phase, with a barrier before each:
//
//   edges     one after the other, both directions (net/probe.cpp)
//   sums      of a bucket, nobody computing
//   compute   steps without network: all ranks at once; for predictions of fewer ranks also the
//             first, the first two … of each machine
//   both      all ranks compute while sums follow one another: what each costs the other
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/plan/step_probe.h"

namespace convoy {

struct RankTiming {
    std::string machine;  // the same for ranks that share processors
    int threads = 0;
    // phases[p]: at two numbers of images, while the first JobTiming::phases[p] ranks of each
    // machine compute; empty where this rank is not among them.
    std::vector<std::vector<StepTiming>> phases;
};

struct JobTiming {
    std::vector<EdgeTiming> edges;  // empty where there are too many for a short look
    PlanLink link;                  // of the slowest edge between any two ranks
    size_t bucket_bytes = kDefaultBucketBytes;
    std::vector<int> phases;  // ranks of a machine that computed at once; the last: all
    std::vector<RankTiming> ranks;
    std::vector<PlanParam> params;
    size_t exact_floats = 0, average_floats = 0;
    double seconds = 0;  // that measuring took
};

struct TimingOptions {
    int64_t batch = 0;
    std::vector<double> shares;  // of all ranks
    double bucket_mb = 0;        // --bucket; 0: from the link
    bool bf16 = false;           // how sums travel in this job
    bool brief = true;           // a second or two; else a second a phase, and phases for fewer
    std::function<int()> stop;   // polled between phases: non-zero on any rank ends all by an Error
};

// Collective: every rank calls it with the same options and gets the same result.
JobTiming time_job(Communicator& communicator, StepProbe& probe, const TimingOptions& options,
                   int threads);

// Images a second of each rank computing by itself, all at once, at its part of the batch.
std::vector<double> compute_speeds(const JobTiming& timing, int64_t batch,
                                   const std::vector<double>& shares);
// The timings of the ranks as they are while `ranks` of them compute: the first so many.
std::vector<std::vector<StepTiming>> timings_of(const JobTiming& timing, int ranks);
// The job of the first ranks; shares: one weight each. Ranks that share a machine, with as many
// threads and images, count as their mean: they take turns, and what one loses another gains.
PlanJob plan_job(const JobTiming& timing, int64_t batch, std::vector<double> shares,
                 int64_t sync_every = 1);

}  // namespace convoy
