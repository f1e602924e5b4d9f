// job_timing.h — before training: measure every edge, every rank, and what compute and network cost
// each other.
//
// All ranks measure together, so ranks that share a machine or a switch are measured as they will
// train:
//
//   edges     one after the other, both directions (net/probe.cpp)
//   sum       of one bucket, while no rank computes
//   compute   steps without network, in rounds: the first rank of each machine by itself, the first
//             two at once, … all at once. Predictions for fewer ranks need the earlier rounds
//   overlap   all ranks compute while sums go on: how much each slows the other down
#pragma once

#include <functional>
#include <vector>

#include "src/base/log.h"
#include "src/plan/step_probe.h"

namespace convoy {

// Collective; `shares`: of all ranks. `brief` takes a second or two and one round; else a round
// takes a second; `log` shows how far it is. Polls `stop` in between: a signal on any rank ends the
// timing of all by an Error.
JobTiming time_job(Communicator& communicator, StepProbe& probe, const Config& config,
                   const std::vector<double>& shares, bool brief, Log& log,
                   const std::function<int()>& stop);

// The shares for `--share auto` (plan.h). Collective: rank 0's, so that all have the same bits.
std::vector<double> fair_shares(Communicator& communicator, const JobTiming& timing, int64_t batch);

}  // namespace convoy
