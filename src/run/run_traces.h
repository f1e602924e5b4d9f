// run_traces.h — when the records of threads (src/base/trace.h) become a file of this rank: after
// the steps of --trace, and with the last three steps on SIGUSR2, a stall, a lost rank or an error.
#pragma once

#include <atomic>
#include <mutex>
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
    void step();    // after each step
    void finish();  // the run ends, perhaps before the last step of --trace
    void write() { write(setup_.rank(), folder(), /*automatic=*/true); }

 private:
    std::string folder() const;
    // Any thread. If the disk is full, the trace is missing, but the run continues.
    void write(int rank, const std::string& folder, bool automatic, int64_t first = 0);

    const TraceSteps steps_ = trace_steps(config_.trace);
    std::mutex mutex_;  // one file at a time
    std::atomic<bool> writes_stall_{false};
    std::jthread stall_writer_;  // the disk may stall, and heartbeats must not wait for it
};

}  // namespace convoy
