// optimizer.cpp — see optimizer.h.
#include "src/train/optimizer.h"

#include <algorithm>
#include <cmath>

namespace convoy {

constexpr float kBeta2 = 0.999f;  // AdamW's; β1 is --momentum

OptimizerOptions::OptimizerOptions(const Config& config)
    : adamw(config.optimizer == OptimizerKind::kAdamw),
      momentum(float(config.momentum)),
      nesterov(config.nesterov),
      weight_decay(float(config.weight_decay)),
      clip_norm(float(config.clip_norm)),
      outer(config.outer != OuterKind::kOff) {}

Optimizer::Optimizer(const OptimizerOptions& options, Params& params, Backend& backend)
    : options_(options), params_(params), backend_(backend) {
    for (size_t i = 0; i < state_names().size(); ++i)
        state_.push_back(backend.alloc(std::max<size_t>(params.trained_size, 1)));
    for (Param* param : params.all()) {
        if (param->frozen || !param->own) continue;
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
    std::vector<std::string> names = {"momentum"};
    if (options_.adamw) names = {"mean", "square"};
    if (options_.outer) names.push_back(kOuterState);
    return names;
}

StepState Optimizer::next(double lr, int64_t steps) const {
    StepState state;
    state.lr = float(lr);
    state.bias1 = float(1 - std::pow(double(options_.momentum), steps + 1));
    state.bias2 = float(1 - std::pow(double(kBeta2), steps + 1));
    return state;
}

void Optimizer::update() {
    update(backend_,
           {0, params_.updated_size, params_.weights, params_.grads, state_, params_.block()});
}

void Optimizer::update(Backend& backend, const Part& part) {
    StepState* state = &part.block->state;
    // Also of the statistics and the counters, which follow the gradients.
    backend.check_finite(part.grads, part.end - part.begin + StepCounters::kSize,
                         part.block->counters + StepCounters::kCount, state);
    if (clips()) {
        float* squares = part.block->counters + StepCounters::kSquares;
        // Where params are elsewhere, their squares came with the counters (pipeline.cpp).
        if (params_.is_whole) backend.sum_squares(part.grads, params_.trained_size, squares);
        backend.clip(squares, options_.clip_norm, state);
    }
    const auto each = [&](const std::vector<Segment>& segments, const auto& op) {
        for (const Segment& s : segments) {
            const size_t begin = std::max(s.begin, part.begin), end = std::min(s.end, part.end);
            const size_t at = begin - part.begin;
            if (begin < end)
                op(part.weights + at, part.grads + at, at, end - begin,
                   s.decay ? options_.weight_decay : 0);
        }
    };
    each(segments_, [&](float* w, const float* g, size_t at, size_t n, float decay) {
        if (options_.adamw)
            backend.adamw(w, g, part.state[0] + at, part.state[1] + at, n, state, options_.momentum,
                          kBeta2, 1e-8f, decay);
        else
            backend.sgd(w, g, part.state[0] + at, n, state, options_.momentum, decay,
                        options_.nesterov);
    });
    constexpr float kPart = 0.1f;  // of a step in running statistics, as in PyTorch
    each(running_, [&](float* w, const float* g, size_t, size_t n, float) {
        backend.moving_mean(w, g, n, state, kPart);
    });
}

}  // namespace convoy
