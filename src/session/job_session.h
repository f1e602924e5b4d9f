// job_session.h — one rank of a job, from joining to leaving: train, eval, plan and the benchmarks.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/base/trace.h"
#include "src/config/config.h"
#include "src/session/rank_json.h"

namespace convoy {

using Stop = std::function<int()>;  // returns the signal that asked to stop, or 0

class JobSession {
 public:
    // Joins the job; without --coord makes a job of one rank. Blocks until all ranks have joined.
    // Throws Error if options do not fit together, or if other ranks do not join in time. `adjust`
    // changes the options of the join, for tests.
    JobSession(const CommandLine& line, Log& log, Stop stop,
               const std::function<void(JoinOptions&)>& adjust = {});

    // Collective, once, after rank 0 has completed its settings. Every rank's `config` gets rank
    // 0's value of each setting of the job. Throws Error if this rank's user gave another value.
    void take_settings_of_rank0();
    Ranks regroup(int64_t step, bool planned);       // Communicator::regroup
    bool lost_rank0() const { return lost_rank0_; }  // the rank 0 with which the job began
    // Waits for all ranks and leaves the job. From now on the loss of this rank is no failure.
    void finish();

    Communicator& communicator() const { return *job_.communicator; }
    // With --join, this rank has no ring before its first regroup(). Until then it uses the offer,
    // which a rank of the job made.
    bool is_newcomer() const { return offer_.has_value(); }
    const Offer& offer() const { return *offer_; }  // for a newcomer
    int rank() const { return communicator().rank(); }
    int world() const { return communicator().world(); }
    const std::vector<Peer>& peers() const { return job_.peers; }  // by rank; empty when alone
    int number(int rank) const { return job_.peers.empty() ? 0 : peers()[size_t(rank)].number; }

    const CommandLine& line;
    Log& log;
    const Stop stop;
    Config config;
    // How long a rank with SIGTERM stays: if the other ranks get SIGTERM too, the whole job ends.
    double notice_seconds = 1;
    Tracer tracer;  // outlives the communicator, whose thread writes

 private:
    Job job_;
    std::optional<Offer> offer_;
    bool lost_rank0_ = false;
};

// Joins, runs `command`, returns its exit status. If it throws, other ranks get the cause and end.
int run_in_job(const CommandLine& line, Log& log, const Stop& stop, int (*command)(JobSession&));

// Who may connect: holders of a token, or anybody with --open. The token comes from --token-file,
// which others must not be able to read, else from CONVOY_TOKEN. Throws Error.
Access access_of(const Config& config);

// Host and port of --coord; port 29400 if it has none. Throws Error.
std::pair<std::string, uint16_t> coordinator_address(const std::string& coord);

}  // namespace convoy
