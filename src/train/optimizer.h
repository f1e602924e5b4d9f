// optimizer.h — summed gradients → new weights, in one pass over the arenas; and the learning rate.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/config/config.h"
#include "src/model/params.h"

namespace convoy {

// Learning rate of step `step` (from 0) in a run of `total` steps, `per_epoch` steps an epoch.
// Warm-up is linear, from base/warmup_steps to base; then
//   constant  base
//   step      base · gamma^⌊(epochs done)/step_epochs⌋
//   cosine    base · (1 + cos(π · progress))/2, progress from the end of the warm-up to `total`
double learning_rate(const Config& config, double base, int64_t step, int64_t total,
                     int64_t per_epoch);

// --lr, or where it is 0 what suits the model: 0.1 at batch 256 with batch norm, 0.01 at batch 128
// without (the rates of torchvision's recipes), both in proportion to the batch; 0.001 for adamw.
double base_learning_rate(const Config& config, bool has_batch_norm);

class Optimizer {
 public:
    // Allocates the state (one arena for sgd, two for adamw), all zeros. The backend and the
    // parameters must outlive the optimizer.
    Optimizer(const Config& config, Params& params, Backend& backend);

    // What the state of the step must be before update().
    StepState next(double lr) const;
    // Gradients in params hold sums over the images that the counters counts; running params hold
    // sums of statistics. Frozen params stay, and all does where a sum is not finite or there was
    // no image: the state of the step then has scale 0. Does not wait.
    void update();

    int64_t steps_done = 0;  // AdamW's t: whoever sees that a step changed the weights counts it
    // The state arenas, each as long as the trained part of the weights: for checkpoints.
    const std::vector<float*>& state() const { return state_; }
    std::vector<std::string> state_names() const;

 private:
    struct Segment {  // neighbouring params that are treated alike
        size_t begin, end;
        bool decay;
    };
    const Config config_;
    Params& params_;
    Backend& backend_;
    std::vector<float*> state_;
    std::vector<Segment> segments_, running_;
};

}  // namespace convoy
