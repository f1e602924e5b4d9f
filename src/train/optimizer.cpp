// optimizer.cpp — see optimizer.h.
#include "src/train/optimizer.h"

#include <cmath>

#include "src/base/check.h"

namespace convoy {

constexpr float kBeta2 = 0.999f;  // AdamW's; β1 is --momentum

double learning_rate(const Config& config, double base, int64_t step, int64_t total,
                     int64_t per_epoch) {
    const double warmup = config.warmup * double(per_epoch);
    if (double(step) < warmup) return base * double(step + 1) / std::max(warmup, 1.0);
    if (config.schedule == Schedule::kConstant) return base;
    if (config.schedule == Schedule::kStep) {
        const double epochs = double(step) / double(std::max<int64_t>(per_epoch, 1));
        return base * std::pow(config.gamma, std::floor(epochs / config.step_epochs));
    }
    const double length = std::max(double(total) - warmup, 1.0);
    const double progress = std::min((double(step) - warmup) / length, 1.0);
    return base * 0.5 * (1 + std::cos(M_PI * progress));
}

double base_learning_rate(const Config& config, bool has_batch_norm) {
    if (config.lr > 0) return config.lr;
    if (config.optimizer == OptimizerKind::kAdamw) return 1e-3;
    return has_batch_norm ? 0.1 * double(config.batch) / 256 : 0.01 * double(config.batch) / 128;
}

Optimizer::Optimizer(const Config& config, Params& params, Backend& backend)
    : config_(config), params_(params), backend_(backend) {
    for (size_t i = 0; i < state_names().size(); ++i)
        state_.push_back(backend.alloc(std::max<size_t>(params.trained_size, 1)));
    for (Param* param : params.all()) {
        if (param->frozen) continue;
        std::vector<Segment>& list = param->running ? running_ : segments_;
        const size_t end = param->offset + param->shape.elems();
        // The padding between params is zero in weights and gradients alike, so a segment may span
        // it.
        if (!list.empty() && list.back().decay == param->decay &&
            param->offset - list.back().end < 16)
            list.back().end = end;
        else
            list.push_back({param->offset, end, param->decay});
    }
}

std::vector<std::string> Optimizer::state_names() const {
    if (config_.optimizer == OptimizerKind::kSgd) return {"momentum"};
    return {"mean", "square"};
}

StepState Optimizer::next(double lr) const {
    StepState state;
    state.lr = float(lr);
    const auto bias = [&](float beta) { return float(1 - std::pow(double(beta), steps_done + 1)); };
    state.bias1 = bias(float(config_.momentum)), state.bias2 = bias(kBeta2);
    return state;
}

void Optimizer::update() {
    const StepState* state = &params_.block()->state;
    // Statistics and the counters with its loss as well: they are behind the gradients.
    backend_.check_finite(params_.grads, params_.grads_size,
                          params_.counters() + StepCounters::kCount, &params_.block()->state);
    for (const Segment& s : segments_) {
        float* w = params_.weights + s.begin;
        const float* g = params_.grads + s.begin;
        const float decay = s.decay ? float(config_.weight_decay) : 0.0f;
        if (config_.optimizer == OptimizerKind::kSgd)
            backend_.sgd(w, g, state_[0] + s.begin, s.end - s.begin, state, float(config_.momentum),
                         decay, config_.nesterov);
        else
            backend_.adamw(w, g, state_[0] + s.begin, state_[1] + s.begin, s.end - s.begin, state,
                           float(config_.momentum), kBeta2, 1e-8f, decay);
    }
    constexpr float kPart = 0.1f;  // of a step in running statistics, as PyTorch's
    for (const Segment& s : running_)
        backend_.moving_mean(params_.weights + s.begin, params_.grads + s.begin, s.end - s.begin,
                             state, kPart);
}

}  // namespace convoy
