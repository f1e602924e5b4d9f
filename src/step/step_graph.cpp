#include "src/step/step_graph.h"

#include <algorithm>

namespace convoy {

std::string why_no_graph(const Backend& backend, int world) {
    if (!backend.can_record()) return cat("device ", backend.name(), " has no graphs");
    if (world > 1) return "gradients are sent to other ranks during the backward pass";
    return "";
}

void StepGraph::run(const Pass& pass, Tensor input, const std::function<void()>& ops) {
    const auto begin = Clock::now();
    if (replay(pass, input)) {
        if (Track* const track = pass.trace.track) track->add(kTraceRecorded, begin, Clock::now());
        return;
    }
    for (;;) try {
            ops();
            return end();
        } catch (const Error& error) {
            give_up(error);
        }
}

// Returns false if the caller must call the ops, which are recorded if recording_.
bool StepGraph::replay(const Pass& pass, Tensor input) {
    if (mode_ == GraphMode::kOff || input.N == 0) return false;
    const auto known = std::find_if(known_.begin(), known_.end(), [&](const Known& one) {
        return one.input.data == input.data && one.input.N == input.N &&
               std::ranges::equal(one.groups, pass.groups);
    });
    // The first run allocates the scratch memory of the ops, which a recording cannot do.
    if (known == known_.end()) {
        if (known_.size() == kKept) known_.pop_back();
        known_.push_front({input, {pass.groups.begin(), pass.groups.end()}, nullptr});
        return false;
    }
    known_.splice(known_.begin(), known_, known);
    if (known->recording && known->recording->replay()) return true;
    known->recording = nullptr;
    recording_ = true;
    try {
        known->recording = backend_.record();
    } catch (const Error& error) {
        give_up(error);
    }
    return false;
}

// If the ops were recorded: ends the recording and replays it.
void StepGraph::end() {
    if (!recording_) return;
    known_.front().recording->end();
    ENSURE(known_.front().recording->replay(), "a recorded step cannot be replayed");
    recording_ = false;
}

// Rethrows the error, unless recording failed: then the caller can call the ops again.
void StepGraph::give_up(const Error& error) {
    if (!recording_) throw;
    recording_ = false;
    known_.clear();
    if (mode_ == GraphMode::kOn) fail("CONVOY_GRAPH=on: cannot record a step: ", error.what());
    mode_ = GraphMode::kOff;
    failure_ = cat("CUDA graph: cannot record a step: ", error.what(), "; steps go on op by op");
}

}  // namespace convoy
