// train_run_trace.cpp — what a run writes down of its steps, and when that becomes a file.
//
//   --trace, SIGUSR2, a stall, a lost rank             of all ranks, where all meet: after a step
//                                                      or an average, or in the new ring
//   a stall, an error that ends the run                of this rank alone, at once
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/base/check.h"
#include "src/base/text.h"
#include "src/run/train_run.h"

namespace convoy {

// Tracks with room for the steps that are always kept, or that --trace asks for.
void TrainRun::open_tracks() {
    const int64_t steps = 1 + std::max<int64_t>(3, trace_steps_.last - trace_steps_.first + 1);
    const auto track = [&](const std::string& name, int place, size_t a_step) {
        const size_t entries = std::clamp<size_t>(a_step * size_t(steps), 256, 65536);
        return setup_.job.tracer.track(name, place, entries);
    };
    const size_t pieces = size_t(config_.pipeline > 1 ? config_.micro : config_.accumulate);
    const size_t buckets = 8 + model_->params().grads_size * sizeof(float) / bucket_bytes_;
    const size_t messages = buckets * size_t(2 * setup_.world() + 1);
    const size_t slices = (4 * model_->lines().size() + 8) * pieces + 16;
    track_ = track("trainer", 1, slices + 2 * buckets);
    if (!backend_->host_visible())
        device_track_ =
            backend_->trace(track("device: operations", 2, slices), track("device: uploads", 5, 4),
                            track("device: downloads", 6, buckets));
    if (setup_.world() > 1 || communicator_.min_world() > 0)  // others may come
        communicator_.record(track("network: collectives, sends", 3, messages),
                             track("network: receives", 4, messages));
    sharing_.tracks.clear();
    for (int i = 0; i < sharing_.threads; ++i)
        sharing_.tracks.push_back(
            track(cat("decoder ", i), 10 + i,
                  size_t(2 * Loader::max_share(sharing_) / sharing_.threads)));
}

// SIGUSR2 is blocked (main.cpp), and waits until somebody takes it.
bool TrainRun::wants_trace() {
    sigset_t trace;
    sigemptyset(&trace), sigaddset(&trace, SIGUSR2);
    const timespec now{};
    if (sigtimedwait(&trace, nullptr, &now) == SIGUSR2) trace_asked_ = true;
    return trace_asked_ || stalled_;
}

// After a step. meets: all ranks are at this place.
void TrainRun::trace_step(bool meets) {
    if (at_.step == trace_steps_.last)
        trace_ = trace_part(setup_.job.tracer, trace_steps_.first), trace_asked_ = true;
    if (meets && (trace_ || trainer_->trace_agreed())) write_trace();
}

// The run ends, perhaps before the last step of --trace.
void TrainRun::finish_trace() {
    if (at_.step >= trace_steps_.last) return;
    if (at_.step < trace_steps_.first)
        return log_.info("--trace ", config_.trace, ": no trace, the run had ", at_.step, " steps");
    trace_ = trace_part(setup_.job.tracer, trace_steps_.first), trace_asked_ = true;
    write_trace();
}

// Collective. A full disk costs the trace, not the run.
void TrainRun::write_trace() {
    if (!trace_) trace_ = trace_part(setup_.job.tracer);
    (*trace_)["asked"] = trace_asked_.exchange(false);
    stalled_ = false;
    std::string name = cat("rank ", setup_.rank());
    for (const Peer& peer : setup_.job.peers())
        if (peer.rank == setup_.rank()) name += cat(" (", peer.host, ", ", peer.address, ")");
    auto parts = gather_trace(communicator_, *trace_, name, !folder_.empty());
    trace_.reset(), trace_due_ = false;
    if (folder_.empty()) return;
    const bool asked = std::ranges::any_of(
        parts, [](const nlohmann::json& part) { return part["asked"] == true; });
    try {
        const std::string path = convoy::write_trace(folder_, asked ? "" : "-auto",
                                                     std::move(parts), size_t(setup_.rank()));
        log_.notice("trace: ", path, "   (open it at https://ui.perfetto.dev)");
        const std::string file = std::filesystem::path(path).filename();
        run_log_->event("trace", {{"step", at_.step}, {"file", file}});
    } catch (const std::exception& error) {
        log_.notice("error: ", error.what(), ". Training goes on");
    }
}

// Of this rank alone; by any thread.
static void write_own(const Tracer& tracer, int rank, const std::string& folder, Log& log) {
    if (folder.empty())
        return log.notice("this rank has no run folder for a trace of its last steps");
    try {
        nlohmann::json part = trace_part(tracer);
        part["name"] = cat("rank ", rank);
        log.notice("trace of the last steps of this rank: ",
                   write_trace(folder, cat("-auto-rank", rank), {part}, 0));
    } catch (const std::exception& error) {
        log.notice("error: ", error.what());
    }
}

// The thread that trains waits in a collective then. What is written at once is there if the rank
// that all wait for never comes back; if it does, a trace of all ranks follows.
void TrainRun::watch_for_stalls() {
    communicator_.on_stall([this, rank = setup_.rank(), folder = folder_](const std::string& why) {
        stalled_ = true;
        if (writes_stall_.exchange(true)) return;
        try {
            stall_writer_ = std::jthread([this, rank, folder, why] {
                run_log_->event("stall", {{"why", why}});
                write_own(setup_.job.tracer, rank, folder, log_);
                writes_stall_ = false;
            });
        } catch (const std::system_error&) {
            writes_stall_ = false;  // no thread for it
        }
    });
}

void TrainRun::trace_failure() {
    if (costs_) write_own(setup_.job.tracer, setup_.rank(), folder_, log_);
}

TrainRun::~TrainRun() { communicator_.on_stall(nullptr); }

}  // namespace convoy
