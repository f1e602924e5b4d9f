// run_traces.h — when the records of threads (src/base/trace.h) become a file of a run.
//
//   --trace, SIGUSR2, a stall, a lost rank    of all ranks, in a step in which they meet, or in the
//                                             new ring
//   a stall, an error that ends the run       of this rank alone, at once
#pragma once

#include <atomic>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "src/run/run_folder.h"
#include "src/run/trace_file.h"

namespace convoy {

class RunTraces {
 public:
    RunTraces(JobSetup& setup, RunFolder& folder, RunProgress& progress);
    ~RunTraces();

    // The thread that trains may wait in a collective while another thread writes: such a trace is
    // there even if the rank that all wait for never comes back.
    void watch_for_stalls();
    // Whether this rank asks the others for a trace, with its next sums.
    bool wants();
    // After a step. meets: all ranks are at this place. agreed: one of them asks.
    void step(bool meets, bool agreed);
    // In a new ring: keeps the last steps of the old one; all write if any rank has kept some.
    void keep();
    bool has_part() const { return part_.has_value(); }
    // Collective. A full disk costs the trace, not the run.
    void write();
    void finish();       // the run ends, perhaps before the last step of --trace
    void write_alone();  // of this rank

 private:
    JobSetup& setup_;
    RunFolder& folder_;
    RunProgress& progress_;
    const TraceSteps steps_ = trace_steps(setup_.config.trace);
    std::atomic<bool> asked_{false}, stalled_{false};  // by SIGUSR2 or --trace
    std::optional<nlohmann::json> part_;               // this rank's part of the next file
    std::atomic<bool> writes_stall_{false};
    std::jthread stall_writer_;  // the disk may be what stalls, and heartbeats must not wait for it
};

}  // namespace convoy
