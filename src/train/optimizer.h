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

struct OptimizerOptions {
    OptimizerOptions(const Config& config);
    OptimizerKind kind;
    bool adamw;      // AdamW or LAMB, with two moments; else SGD, LARS or Muon, with momentum
    float momentum;  // of adamw: beta 1
    float weight_decay;
    float clip_norm;  // 0: gradients are not clipped
    double ema;       // decay of the average of weights; 0: there is none
    double layer_decay;
    bool outer;  // --outer: a momentum of the averages beside
};

constexpr float kBeta2 = 0.999f;  // AdamW's; β1 is --momentum
constexpr const char* kOuterState = "outer";
// --ema: a moving average of weights and statistics, the model that is validated and used. After a
// step with number t, from 0:   mean += (1 − d)·(w − mean), d = min(D, (1 + t)/(10 + t)), 0 for t =
// 0
constexpr const char* kAverageState = "weights";  // in files it is they that are beside the model

class Optimizer {
 public:
    // Allocates the state (one arena for sgd, two for adamw, one more for --ema and for --outer),
    // all zeros. The
    // backend and the parameters must outlive the optimizer.
    Optimizer(const OptimizerOptions& options, Params& params, Backend& backend);

    // The state of the step after `steps`, to be written after its counters (params.h) before
    // update().
    StepState next(double lr, int64_t steps) const;
    StepState next(double lr) const { return next(lr, steps_done); }
    // The gradient arena holds sums over the images that the counters count. Frozen params keep
    // their values. So do all params if a sum is not finite or there was no image: the state of
    // the step then has scale 0. Does not wait.
    void update();
    // The same for a part of the arenas, elsewhere: floats [begin, end) of weights, of state, and
    // of sums, which the counters follow.
    struct Part {
        size_t begin, end;
        float *weights, *grads;         // of float `begin`
        std::span<float* const> state;  // likewise
        StepBlock* block;               // counters, and the state of the step
    };
    void update(Backend& backend, const Part& part);
    // LARS, LAMB and Muon: of each tensor by itself. The whole of it must be here.
    bool by_tensor() const {
        return options_.kind != OptimizerKind::kSgd && options_.kind != OptimizerKind::kAdamw;
    }

    // With --ema, once there is an average: it and the weights trade places, or with `all` also
    // what other ranks train. The gradients are scratch memory. Else nothing.
    void swap_average(bool all = false);
    bool clips() const { return options_.clip_norm > 0; }

    int64_t steps_done = 0;  // AdamW's t: the trainer counts steps that changed the weights
    // The state arenas, each of Params::state_size, and their names.
    const std::vector<float*>& state() const { return state_; }
    std::vector<std::string> state_names() const;
    // All that is trained, in device memory: the weights, then each state arena.
    std::vector<std::span<float>> arenas() const;
    // Of these the momentum of --outer, which weight_average.h updates, or null; and all others.
    float* outer() const { return options_.outer ? state_.back() : nullptr; }
    std::span<float* const> inner() const {
        return {state_.data(), state_.size() - options_.outer};
    }

 private:
    float rate_of(const Param& param) const;
    void alloc_scratch();
    void update_tensors(const StepState* state);
    struct Segment {  // neighbouring params with the same decay and rate
        size_t begin, end;
        bool decay;
        float rate;  // part of the learning rate
    };
    const OptimizerOptions options_;
    Params& params_;
    Backend& backend_;
    std::vector<float*> state_;
    float* scratch_ = nullptr;  // where by_tensor()
    std::set<size_t> layers_;   // that have params
    size_t average_ = 0;        // place in state_, with --ema
    std::vector<Segment> segments_, running_;
};

}  // namespace convoy
