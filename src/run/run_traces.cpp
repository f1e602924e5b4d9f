#include "src/run/run_traces.h"

#include <signal.h>

#include <filesystem>

#include "src/base/check.h"

namespace convoy {

// Ranks that do not save have no run folder yet, but perhaps --out.
std::string RunTraces::folder() const {
    const std::string& saves = folder_.path().empty() ? config_.out : folder_.path();
    return saves.empty() ? "." : saves;
}

// SIGUSR2 is blocked (main.cpp), and stays pending until it is taken here.
void RunTraces::step() {
    sigset_t trace;
    sigemptyset(&trace), sigaddset(&trace, SIGUSR2);
    const timespec now{};
    if (sigtimedwait(&trace, nullptr, &now) == SIGUSR2) write(setup_.rank(), folder(), false);
    if (progress_.at.step == steps_.last) write(setup_.rank(), folder(), false, steps_.first);
}

void RunTraces::finish() {
    const int64_t step = progress_.at.step;
    if (step >= steps_.last) return;
    if (step < steps_.first)
        return log_.info("--trace ", config_.trace, ": no trace, the run had ", step, " steps");
    write(setup_.rank(), folder(), false, steps_.first);
}

void RunTraces::write(int rank, const std::string& folder, bool automatic, int64_t first) {
    std::lock_guard lock(mutex_);
    try {
        const std::string path = write_trace(setup_.job.tracer, folder, rank, automatic, first);
        const std::string text = cat("trace: ", path, "   (open it at https://ui.perfetto.dev)");
        automatic&& rank > 0 ? log_.detail(text) : log_.notice(text);
        folder_.log.event("trace", {{"file", std::filesystem::path(path).filename()}});
    } catch (const std::exception& error) {
        log_.notice("error: ", error.what());
    }
}

void RunTraces::watch_for_stalls() {
    communicator_.on_stall([this, rank = setup_.rank(), folder = folder()](const std::string& why) {
        if (writes_stall_.exchange(true)) return;
        try {
            stall_writer_ = std::jthread([this, rank, folder, why] {
                folder_.log.event("stall", {{"why", why}});
                write(rank, folder, /*automatic=*/true);
                writes_stall_ = false;
            });
        } catch (const std::system_error&) {
            writes_stall_ = false;  // the system has no thread for it
        }
    });
}

}  // namespace convoy
