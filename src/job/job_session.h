// job_session.h — one rank of a job, from joining to leaving: train, eval, plan and the benchmarks.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "net/communicator.h"
#include "src/base/trace.h"
#include "src/config/config.h"
#include "src/job/offer.h"

namespace convoy {

using Stop = std::function<int()>;  // the signal that asked to stop, 0 if none did

class JobSession {
 public:
    // Joins, or makes a job of one rank without --coord. Blocks until all ranks are there. Throws
    // Error where the options do not fit together, or other ranks do not join in time.
    // `adjust`: last word on how to join, for tests.
    JobSession(const CommandLine& line, Log& log, Stop stop,
               const std::function<void(JoinOptions&)>& adjust = {});

    // Collective: every rank's `config` gets rank 0's value of each setting of the job. To be
    // called once, after rank 0 has completed its own. Throws Error where this rank's user gave
    // another value.
    void take_settings_of_rank0();
    // Communicator::regroup. Returns the old ranks of those that are left; `why`: for the log.
    std::vector<int> regroup(int64_t step, bool planned, std::string& why);
    bool lost_rank0() const { return lost_rank0_; }  // the one that the job began with
    // Waits for all ranks and says good-bye. Losing this rank is no failure any more.
    void finish();

    Communicator& communicator() const { return *job_.communicator; }
    // --join: this rank has no ring before its first regroup(-1, true). What the others would say
    // meanwhile is in the offer that one of them made.
    bool is_newcomer() const { return offer_.has_value(); }
    const Offer& offer() const { return *offer_; }  // to a newcomer
    int rank() const { return communicator().rank(); }
    int world() const { return communicator().world(); }
    const std::vector<Peer>& peers() const { return job_.peers; }  // by rank; empty when alone

    const CommandLine& line;
    Log& log;
    const Stop stop;
    Config config;
    // How long a rank that got SIGTERM stays: perhaps the others get it too, and the job ends.
    double notice_seconds = 1;
    Tracer tracer;  // outlives the communicator, whose thread writes

 private:
    Job job_;
    std::optional<Offer> offer_;
    bool lost_rank0_ = false;
};

// What a JOIN says of a setting: equal where the values are, however many classes they list.
std::string comparable(const std::string& value);

// Joins, runs `command`, and returns its exit status. If it throws, the other ranks get the cause
// and end as well.
int run_in_job(const CommandLine& line, Log& log, const Stop& stop, int (*command)(JobSession&));

// Who may connect: the token of --token-file, which must not be readable by everybody, or else of
// CONVOY_TOKEN, and --open. Throws Error.
Access access_of(const Config& config);

// Host and port of --coord; port 29400 if it has none. Throws Error.
std::pair<std::string, uint16_t> coordinator_address(const std::string& coord);

}  // namespace convoy
