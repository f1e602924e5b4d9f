// job_setup.h — before step 1: the ranks meet and agree on what is trained, and on which data.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/source.h"
#include "net/communicator.h"
#include "src/checkpoint/checkpoint.h"
#include "src/config/config.h"

namespace convoy {

using Stop = std::function<int()>;  // the signal that asked to stop, 0 if none did

// How a batch is cut among the ranks.
struct Shares {
    std::vector<double> weights;  // one a rank
    bool fair = false;            // --share auto: equal until the ranks are measured
};
// From what each rank's --share says: rank 0's list or `auto`, else one weight of each. Where rank
// 0 decides for all, a rank that said something else is told on `log`. Collective.
Shares gather_shares(Communicator& communicator, const std::string& mine, Log& log);

// What all ranks agreed on, and this rank's means.
struct JobSetup {
    Config config;  // complete: rank 0's settings, this rank's device and threads
    std::string model_text;
    std::vector<std::string> classes;
    Shares shares;
    DataSet data;
    Job job;
    std::optional<Checkpoint> resumed;  // on rank 0, where --resume was given

    Communicator& communicator() { return *job.communicator; }
    int rank() const { return job.communicator->rank(); }
    int world() const { return job.communicator->world(); }
};

// Alone without --coord. Else joins; rank 0 decides every setting of the job (from a checkpoint's
// options where it resumes, its command line, the defaults) and hands them to the others. What
// another rank's user typed must agree; class list and data must be the same on all. Throws Error
// naming rank, option and both values; then every rank fails with it.
JobSetup set_up_job(const CommandLine& line, Log& log, const Stop& stop);

// Joins only (eval, bench): alone without --coord.
Job join_job(const CommandLine& line, Log& log, const Stop& stop);

// Host and port of --coord: "host:port", "[v6]:port", or "host" alone (port 29400). Throws Error.
std::pair<std::string, uint16_t> coordinator_address(const std::string& coord);

DataOptions data_options(const Config& config, const std::vector<std::string>& classes = {});

}  // namespace convoy
