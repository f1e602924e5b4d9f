// measure_job.h — measures the links and the ranks of a job before it trains.
//
//   links      edge after edge, both directions; then sums of one bucket, while nobody computes
//   ranks      steps without network: rank 0 alone, then all ranks at once
//   real steps (plan alone) the ring and all ranks together: what shared cores leave
#pragma once

#include "src/base/log.h"
#include "src/job/job_session.h"
#include "src/plan/plan.h"
#include "src/train/trainer.h"

namespace convoy {

// What is timed: a planned model on this rank, which must outlive the call. Weights stay as they
// are; running statistics and optimizer state do not.
struct Probe {
    const Config& config;
    Backend& backend;
    Model& model;
    Optimizer& optimizer;
    int classes;
};

// Collective. `shares`: of all ranks. `brief` takes a second or two and leaves `alone` and
// `contention` out. A signal on any rank ends it by an Error.
JobTiming measure_job(Communicator& communicator, const Probe& probe,
                      const std::vector<double>& shares, bool brief, Log& log, const Stop& stop);

// Collective. Trains real steps with these shares: sets `contention`, and returns images a second;
// 0 where a share is larger than the model is planned for.
double measure_real_steps(Communicator& communicator, const Probe& probe,
                          const std::vector<double>& shares, JobTiming& timing);

// The shares for `--share auto`. Collective: rank 0's, so that all have the same bits.
std::vector<double> agreed_shares(Communicator& communicator, const JobTiming& timing,
                                  int64_t batch);

}  // namespace convoy
