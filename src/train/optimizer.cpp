// optimizer.cpp — see optimizer.h.
#include "src/train/optimizer.h"

#include <cmath>

namespace convoy {

constexpr float kBeta2 = 0.999f;  // AdamW's; β1 is --momentum

OptimizerOptions::OptimizerOptions(const Config& config)
    : adamw(config.optimizer == OptimizerKind::kAdamw),
      momentum(float(config.momentum)),
      nesterov(config.nesterov),
      weight_decay(float(config.weight_decay)) {}

Optimizer::Optimizer(const OptimizerOptions& options, Params& params, Backend& backend)
    : options_(options), params_(params), backend_(backend) {
    for (size_t i = 0; i < state_names().size(); ++i)
        state_.push_back(backend.alloc(std::max<size_t>(params.trained_size, 1)));
    for (Param* param : params.all()) {
        if (param->frozen) continue;
        std::vector<Segment>& list = param->running ? running_ : segments_;
        const size_t end = param->offset + param->shape.elems();
        // A segment may span the padding between params, which is zero in weights and gradients.
        if (!list.empty() && list.back().decay == param->decay &&
            param->offset - list.back().end < 16)
            list.back().end = end;
        else
            list.push_back({param->offset, end, param->decay});
    }
}

std::vector<std::string> Optimizer::state_names() const {
    if (options_.adamw) return {"mean", "square"};
    return {"momentum"};
}

StepState Optimizer::next(double lr) const {
    StepState state;
    state.lr = float(lr);
    state.bias1 = float(1 - std::pow(double(options_.momentum), steps_done + 1));
    state.bias2 = float(1 - std::pow(double(kBeta2), steps_done + 1));
    return state;
}

void Optimizer::update() {
    const StepState* state = &params_.block()->state;
    // Also of the statistics and the counters, which follow the gradients.
    backend_.check_finite(params_.grads, params_.grads_size,
                          params_.counters() + StepCounters::kCount, &params_.block()->state);
    for (const Segment& s : segments_) {
        float* w = params_.weights + s.begin;
        const float* g = params_.grads + s.begin;
        const size_t n = s.end - s.begin;
        const float decay = s.decay ? options_.weight_decay : 0;
        if (options_.adamw)
            backend_.adamw(w, g, state_[0] + s.begin, state_[1] + s.begin, n, state,
                           options_.momentum, kBeta2, 1e-8f, decay);
        else
            backend_.sgd(w, g, state_[0] + s.begin, n, state, options_.momentum, decay,
                         options_.nesterov);
    }
    constexpr float kPart = 0.1f;  // of a step in running statistics, as in PyTorch
    for (const Segment& s : running_)
        backend_.moving_mean(params_.weights + s.begin, params_.grads + s.begin, s.end - s.begin,
                             state, kPart);
}

}  // namespace convoy
