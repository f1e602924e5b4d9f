// preflight.h — a short measurement before a job of several ranks trains: the size of a bucket, the
// shares of --share auto, and whether a link or a rank stands out.
#pragma once

#include "src/job/job_setup.h"

namespace convoy {

struct Preflight {
    size_t bucket_bytes = 0;
    std::string link = {};  // rank 0's line about the slowest link
};

// Measures with a small copy of the model, which is gone afterwards. Names on rank 0's log what
// stands out, and sets the shares of `--share auto`. Does nothing in a job of one rank, or with
// CONVOY_PREFLIGHT=off. Collective; every rank gets rank 0's decisions.
Preflight run_preflight(JobSetup& setup);

}  // namespace convoy
