// step_graph.cpp — see step_graph.h.
#include "src/train/step_graph.h"

#include <algorithm>

#include "src/base/check.h"

namespace convoy {

std::string why_no_graph(const Backend& backend, int world) {
    if (!backend.can_record()) return cat("there are no graphs on device ", backend.name());
    if (world > 1) return "gradients leave for the other ranks in the middle of the backward pass";
    return "";
}

bool StepGraph::Known::is(const Pass& pass, Tensor x) const {
    return input.data == x.data && input.N == x.N &&
           std::equal(groups.begin(), groups.end(), pass.groups.begin(), pass.groups.end());
}

void StepGraph::run(const Pass& pass, Tensor input, const std::function<void()>& ops) {
    if (mode_ == GraphMode::kOff || input.N == 0) return ops();
    const auto known = std::find_if(known_.begin(), known_.end(),
                                    [&](const Known& one) { return one.is(pass, input); });
    // The first run makes the memory grow to what the ops need, which a recording may not.
    if (known == known_.end()) {
        if (known_.size() == kKept) known_.pop_back();
        known_.push_front({input, {pass.groups.begin(), pass.groups.end()}, nullptr});
        return ops();
    }
    known_.splice(known_.begin(), known_, known);
    std::unique_ptr<Recording>& recording = known->recording;
    if (recording && recording->replay()) return;
    try {
        recording = backend_.record(ops);
    } catch (const Error& error) {
        if (mode_ == GraphMode::kOn) throw;
        mode_ = GraphMode::kOff;
        failure_ = error.what();
        return ops();
    }
    ENSURE(recording->replay(), "a recorded step cannot be replayed");
}

}  // namespace convoy
