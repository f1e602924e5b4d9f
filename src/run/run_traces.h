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

class RunTraces : RunPart {
 public:
    explicit RunTraces(const RunPart& run) : RunPart(run) {}
    ~RunTraces() { communicator_.on_stall(nullptr); }

    // Writes from another thread, because the thread that trains may wait in a collective. So the
    // trace is written even if the rank that all wait for never comes back.
    void watch_for_stalls();
    // Whether this rank asks the others for a trace, with its next sums.
    bool wants();
    // Called after a step. meets: all ranks are in the same place. agreed: one wants a trace.
    void step(bool meets, bool agreed);
    // Called in a new ring. Keeps the last steps of the old ring. All write if any rank keeps some.
    void keep();
    bool has_part() const { return part_.has_value(); }
    // Collective. If the disk is full, the trace is missing, but the run continues.
    void write();
    void finish();       // the run ends, perhaps before the last step of --trace
    void write_alone();  // of this rank

 private:
    const TraceSteps steps_ = trace_steps(config_.trace);
    std::atomic<bool> asked_{false}, stalled_{false};  // by SIGUSR2 or --trace
    std::optional<nlohmann::json> part_;               // this rank's part of the next file
    std::atomic<bool> writes_stall_{false};
    std::jthread stall_writer_;  // the disk may stall, and heartbeats must not wait for it
};

}  // namespace convoy
