// preflight.h — the second before a job of several ranks: is every edge and every rank what it
// should be, and how fast will this be?
#pragma once

#include "src/job/job_setup.h"

namespace convoy {

struct Preflight {
    size_t bucket_bytes = 0;          // --bucket, or by the slowest edge
    std::vector<std::string> report;  // rank 0's lines about what to expect
};

// Unless the job has one rank or says --preflight off: times edges and ranks with a small copy of
// the model, which is gone afterwards, names what stands out on rank 0's log, and replaces the
// shares of `--share auto` by fair ones. Collective; every rank gets rank 0's decisions.
Preflight run_preflight(JobSetup& setup, Log& log, const Stop& stop);

}  // namespace convoy
