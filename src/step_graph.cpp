// step_graph.cpp — see step_graph.h.
#include "src/step_graph.h"

#include <algorithm>

#include "src/base/check.h"

namespace convoy {

std::string why_no_graph(const Backend& backend, int world) {
    if (!backend.can_record()) return cat("there are no graphs on device ", backend.name());
    if (world > 1) return "gradients leave for the other ranks in the middle of the backward pass";
    return "";
}

GraphMode parse_graph_mode(const std::string& text) {
    return text == "on" ? GraphMode::kOn : text == "off" ? GraphMode::kOff : GraphMode::kAuto;
}

void StepGraph::run(const Pass& pass, Tensor input, const std::function<void()>& ops) {
    const bool same =
        input_.data == input.data && input_.N == input.N && epoch_ == pass.epoch &&
        std::equal(groups_.begin(), groups_.end(), pass.groups.begin(), pass.groups.end());
    if (!same) {
        times_ = 0, input_ = input, epoch_ = pass.epoch;
        groups_.assign(pass.groups.begin(), pass.groups.end());
    }
    // The first run makes the memory grow to what the ops need, which a recording may not.
    if (times_++ == 0 || mode_ == GraphMode::kOff || input.N == 0) return ops();
    if (times_ > 2 && backend_.replay()) return;
    try {
        backend_.record(ops);
    } catch (const Error& error) {
        if (mode_ == GraphMode::kOn) throw;
        mode_ = GraphMode::kOff;
        failure_ = error.what();
        return ops();
    }
    ENSURE(backend_.replay(), "a recorded step cannot be replayed");
}

}  // namespace convoy
