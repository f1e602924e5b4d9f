// job_session.h — one rank of a job, from joining to leaving: train, eval, plan and the benchmarks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "net/communicator.h"
#include "src/config/config.h"

namespace convoy {

using Stop = std::function<int()>;  // the signal that asked to stop, 0 if none did

class JobSession {
 public:
    // Joins, or makes a job of one rank without --coord. Blocks until all ranks are there. Throws
    // Error where the options do not fit together, or other ranks do not join in time.
    JobSession(const CommandLine& line, Log& log, Stop stop);

    // Collective: every rank's `config` gets rank 0's value of each setting of the job. To be
    // called once, after rank 0 has completed its own. Throws Error where this rank's user gave
    // another value.
    void take_settings_of_rank0();
    // Waits for all ranks and says good-bye. Losing this rank is no failure any more.
    void finish();

    Communicator& communicator() const { return *job_.communicator; }
    int rank() const { return communicator().rank(); }
    int world() const { return communicator().world(); }
    const std::vector<Peer>& peers() const { return job_.peers; }  // by rank; empty when alone

    const CommandLine& line;
    Log& log;
    const Stop stop;
    Config config;

 private:
    Job job_;
};

// Joins, runs `command`, and returns its exit status. If it throws, the other ranks get the cause
// and end as well.
int run_in_job(const CommandLine& line, Log& log, const Stop& stop, int (*command)(JobSession&));

// Host and port of --coord; port 29400 if it has none. Throws Error.
std::pair<std::string, uint16_t> coordinator_address(const std::string& coord);

}  // namespace convoy
