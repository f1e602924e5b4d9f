// timing.h — measures the links and the ranks of a job before it trains.
//
//   links   each link in both directions; then sums of one bucket, while no rank computes
//   ranks   steps without a network: rank 0 alone, then all ranks at the same time
#pragma once

#include "src/plan/plan.h"
#include "src/session/job_setup.h"

namespace convoy {

// Collective among the ranks of `communicator`, which may be this rank alone. Measures with a copy
// of the model, which is freed at the end. If `brief`, it takes about 2 s, uses a small batch and
// does not measure RankTiming::alone. A signal on any rank ends it on all ranks with an Error.
JobTiming time_job(const JobSetup& setup, Communicator& communicator, bool brief);

// The seconds of each sum of `bytes` bytes, one after the other, for about `seconds`, at least 5
// times. Collective: rank 0 decides how often. A signal ends it with an Error.
std::vector<double> time_sums(
    Communicator& communicator, size_t bytes, double seconds, const Stop& stop = [] { return 0; });

// The short measurement before a job of several ranks trains. Sets the shares of `--share auto`,
// bucket_bytes and link_text, and warns on rank 0's log of slow links and slow ranks. Does nothing
// in a job of one rank, with a pipeline, or with CONVOY_PREFLIGHT=off. Collective; every rank gets
// rank 0's decisions.
void run_preflight(JobSetup& setup);

}  // namespace convoy
