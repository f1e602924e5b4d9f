#include "src/step/optimizer.h"

#include <algorithm>
#include <cmath>

namespace convoy {

Optimizer::Optimizer(const Config& config, Params& params, Backend& backend)
    : config_(config), params_(params), backend_(backend) {
    params.state_size = config.ema > 0 ? params.updated_size : params.trained_size;
    average_ = is_adamw() ? 2 : 1;
    for (size_t i = 0; i < state_names().size(); ++i)
        state_.push_back(backend.alloc(std::max<size_t>(params.state_size, 1)));
    for (const Param* param : params.all()) layers_.insert(param->layer);
    if (by_tensor()) alloc_scratch();
    for (Param* param : params.all()) {
        if (param->frozen || param->running || !param->own) continue;
        if (by_tensor() && param->decay) continue;
        const size_t begin = param->offset, end = begin + param->shape.elems();
        const float decay = param->decay ? float(config.weight_decay) : 0, rate = rate_of(*param);
        // A segment may span the padding between params, which is zero in weights and gradients.
        Segment* const last = segments_.empty() ? nullptr : &segments_.back();
        if (last && last->weight_decay == decay && last->rate == rate && begin - last->end < 16)
            last->end = end;
        else
            segments_.push_back({begin, end, decay, rate});
    }
}

// The last layer has the full learning rate, the first 1/G of it.
float Optimizer::rate_of(const Param& param) const {
    const auto above = std::distance(layers_.upper_bound(param.layer), layers_.end());
    const double depth = double(above) / std::max(double(layers_.size()) - 1, 1.0);
    return float(std::pow(config_.lr_decay_layers, -depth));
}

std::vector<std::string> Optimizer::state_names() const {
    std::vector<std::string> names = {"momentum"};
    if (is_adamw()) names = {"mean", "square"};
    if (config_.ema > 0) names.push_back(kAverageState);
    if (config_.outer) names.push_back(kOuterState);
    return names;
}

std::vector<std::span<float>> Optimizer::arenas() const {
    std::vector<std::span<float>> all = {{params_.weights, params_.weights_size}};
    for (float* state : state_) all.push_back({state, params_.state_size});
    return all;
}

StepState Optimizer::next(double lr, int64_t steps) const {
    StepState state;
    state.lr = float(lr);
    state.bias1 = float(1 - std::pow(double(float(config_.momentum)), steps + 1));
    state.bias2 = float(1 - std::pow(double(kBeta2), steps + 1));
    const double t = double(steps);
    state.part = steps == 0 ? 1 : float(1 - std::min(config_.ema, (1 + t) / (10 + t)));
    return state;
}

void Optimizer::swap_average(bool all) {
    if (config_.ema == 0 || steps_done == 0) return;
    const std::vector<Params::Range> whole = {{0, params_.updated_size}};
    for (const auto& [begin, end] : all ? whole : params_.owned) {
        float *w = params_.weights + begin, *mean = state_[average_] + begin;
        float* const scratch = params_.grads + begin;
        backend_.copy(scratch, w, end - begin);
        backend_.copy(w, mean, end - begin);
        backend_.copy(mean, scratch, end - begin);
    }
}

void Optimizer::update() {
    update(backend_,
           {0, params_.updated_size, params_.weights, params_.grads, state_, params_.block()});
}

void Optimizer::update(Backend& backend, const Part& part) {
    StepState* state = &part.block->state;
    const float momentum = float(config_.momentum);
    // Includes the statistics and the counters, which follow the gradients.
    backend.check_finite(part.grads, part.end - part.begin + StepCounters::kSize,
                         part.block->counters + StepCounters::kCount, state);
    if (clips()) {
        float* squares = part.block->counters + StepCounters::kSquares;
        // If params are on other ranks, the counters hold the sum of squares (pipeline.cpp).
        if (params_.is_whole) backend.sum_squares(part.grads, params_.trained_size, squares);
        backend.clip(squares, float(config_.clip_norm), state);
    }
    const Segments segments{segments_, part.begin};
    const size_t trained = std::clamp(params_.trained_size, part.begin, part.end) - part.begin;
    if (is_adamw())
        backend.adamw(part.weights, part.grads, part.state[0], part.state[1], trained, segments,
                      state, momentum, kBeta2, 1e-8f);
    else
        backend.sgd(part.weights, part.grads, part.state[0], trained, segments, state, momentum,
                    /*nesterov=*/false);
    if (by_tensor()) update_tensors(state);
    constexpr float kPart = 0.1f;  // weight of a step in running statistics, as in PyTorch
    for (const Params::Range& own : params_.owned) {
        const size_t begin = std::max(own.begin, part.begin), end = std::min(own.end, part.end);
        const size_t running = std::max(begin, params_.trained_size), at = running - part.begin;
        if (running < end)
            backend.moving_mean(part.weights + at, part.grads + at, end - running, state, kPart);
        if (begin < end && config_.ema > 0)
            backend.average(part.state[average_] + begin - part.begin,
                            part.weights + begin - part.begin, end - begin, state);
    }
}

}  // namespace convoy
