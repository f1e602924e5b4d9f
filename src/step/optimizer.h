// optimizer.h — summed gradients → new weights, in one pass over the arenas.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "src/config/config.h"
#include "src/model/params.h"

namespace convoy {

constexpr float kBeta2 = 0.999f;  // AdamW's; β1 is --momentum
constexpr const char* kOuterState = "outer";
// --ema: a moving average of weights and statistics, which is validated and saved as the model:
//   after step t (from 0)  mean += (1 − d)·(w − mean), d = min(D, (1 + t)/(10 + t)), 0 for t = 0
constexpr const char* kAverageState = "weights";  // in files, the state holds the weights instead

class Optimizer {
 public:
    // Allocates the state, all zeros: one arena for sgd, two for adamw, one more each for --ema and
    // DiLoCo. The backend and the parameters must outlive the optimizer.
    Optimizer(const Config& config, Params& params, Backend& backend);

    // The StepState of the step after `steps`, which the host writes to the arena before update().
    StepState next(double lr, int64_t steps) const;
    StepState next(double lr) const { return next(lr, steps_done); }
    // Updates the weights from the sums in the gradient arena. Nothing changes if a sum is not
    // finite or there was no image: then the StepState has scale 0. Does not wait for the device.
    void update();
    // The same for floats [begin, end) of copies of the arenas.
    struct Part {
        size_t begin, end;
        float *weights, *grads;         // address of float `begin`; counters follow the gradients
        std::span<float* const> state;  // likewise
        StepBlock* block;               // counters and StepState
    };
    void update(Backend& backend, const Part& part);
    // Muon updates each tensor separately, so this rank must have whole tensors.
    bool by_tensor() const { return config_.optimizer == OptimizerKind::kMuon; }

    // With --ema, after the first step: exchanges the average and the weights, of own params or
    // with `all` of all params. This overwrites the gradients. In all other cases it does nothing.
    void swap_average(bool all = false);
    bool clips() const { return float(config_.clip_norm) > 0; }

    int64_t steps_done = 0;  // AdamW's t: the trainer counts steps that changed the weights
    // The state arenas, each of Params::state_size, and their names.
    const std::vector<float*>& state() const { return state_; }
    std::vector<std::string> state_names() const;
    // In device memory: the weights, then each state arena.
    std::vector<std::span<float>> arenas() const;
    // The momentum of DiLoCo (weight_average.cpp), or null; and the other state arenas.
    float* outer() const { return config_.outer ? state_.back() : nullptr; }
    std::span<float* const> inner() const { return {state_.data(), state_.size() - config_.outer}; }

 private:
    // With two moments; else SGD or Muon, with momentum.
    bool is_adamw() const { return config_.optimizer == OptimizerKind::kAdamw; }
    float rate_of(const Param& param) const;
    void alloc_scratch();
    void update_tensors(const StepState* state);
    const Config config_;
    Params& params_;
    Backend& backend_;
    std::vector<float*> state_;
    float* scratch_ = nullptr;       // if by_tensor()
    std::set<size_t> layers_;        // layers with params
    size_t average_ = 0;             // index in state_, with --ema
    std::vector<Segment> segments_;  // neighbouring trained params of the same kind
};

}  // namespace convoy
