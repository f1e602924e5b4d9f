// preflight.h — a short measurement before a job of several ranks trains: does an edge or a rank
// stand out?
#pragma once

#include "src/job/job_setup.h"

namespace convoy {

struct Preflight {
    size_t bucket_bytes = 0;  // CONVOY_BUCKET, or by the slowest link
    std::string link = {};    // rank 0's line about that link
};

// Times edges and ranks with a small copy of the model, which is gone afterwards; names on rank 0's
// log what stands out; replaces the shares of `--share auto` by fair ones. Does nothing in a job of
// one rank, or with CONVOY_PREFLIGHT=off. Collective; every rank gets rank 0's decisions.
Preflight run_preflight(JobSetup& setup);

}  // namespace convoy
