#include "src/run/run_traces.h"

#include <signal.h>

#include <algorithm>
#include <filesystem>

#include "src/base/check.h"

namespace convoy {

// SIGUSR2 is blocked (main.cpp), and stays pending until it is taken here.
bool RunTraces::wants() {
    sigset_t trace;
    sigemptyset(&trace), sigaddset(&trace, SIGUSR2);
    const timespec now{};
    if (sigtimedwait(&trace, nullptr, &now) == SIGUSR2) asked_ = true;
    return asked_ || stalled_;
}

void RunTraces::step(bool meets, bool agreed) {
    if (progress_.at.step == steps_.last)
        part_ = trace_part(setup_.job.tracer, steps_.first), asked_ = true;
    if (meets && (part_ || agreed)) write();
}

void RunTraces::keep() {
    if (!part_) part_ = trace_part(setup_.job.tracer);
}

void RunTraces::finish() {
    const int64_t step = progress_.at.step;
    if (step >= steps_.last) return;
    if (step < steps_.first)
        return log_.info("--trace ", config_.trace, ": no trace, the run had ", step, " steps");
    part_ = trace_part(setup_.job.tracer, steps_.first), asked_ = true;
    write();
}

void RunTraces::write() {
    keep();
    (*part_)["asked"] = asked_.exchange(false);
    stalled_ = false;
    std::string name = cat("rank ", setup_.rank());
    for (const Peer& peer : setup_.job.peers())
        if (peer.rank == setup_.rank()) name += cat(" (", peer.host, ", ", peer.address, ")");
    const bool writes = !folder_.path().empty();
    auto parts = gather_trace(communicator_, *part_, name, writes);
    part_.reset();
    if (!writes) return;
    const bool asked = std::ranges::any_of(
        parts, [](const nlohmann::json& part) { return part["asked"] == true; });
    try {
        const std::string path = write_trace(folder_.path(), asked ? "" : "-auto", std::move(parts),
                                             size_t(setup_.rank()));
        log_.notice("trace: ", path, "   (open it at https://ui.perfetto.dev)");
        const std::string file = std::filesystem::path(path).filename();
        folder_.log.event("trace", {{"step", progress_.at.step}, {"file", file}});
    } catch (const std::exception& error) {
        log_.notice("error: ", error.what(), ". Training goes on");
    }
}

// Any thread may call it.
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

void RunTraces::write_alone() { write_own(setup_.job.tracer, setup_.rank(), folder_.path(), log_); }

void RunTraces::watch_for_stalls() {
    communicator_.on_stall(
        [this, rank = setup_.rank(), folder = folder_.path()](const std::string& why) {
            stalled_ = true;
            if (writes_stall_.exchange(true)) return;
            try {
                stall_writer_ = std::jthread([this, rank, folder, why] {
                    folder_.log.event("stall", {{"why", why}});
                    write_own(setup_.job.tracer, rank, folder, log_);
                    writes_stall_ = false;
                });
            } catch (const std::system_error&) {
                writes_stall_ = false;  // the system has no thread for it
            }
        });
}

}  // namespace convoy
