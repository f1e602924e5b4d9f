// optimizer.h — summed gradients → new weights, in one pass over the arenas.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/config/config.h"
#include "src/model/params.h"

namespace convoy {

struct OptimizerOptions {
    OptimizerOptions(const Config& config);
    bool adamw;      // else SGD with momentum
    float momentum;  // of adamw: beta 1
    bool nesterov;
    float weight_decay;
};

class Optimizer {
 public:
    // Allocates the state (one arena for sgd, two for adamw), all zeros. The backend and the
    // parameters must outlive the optimizer.
    Optimizer(const OptimizerOptions& options, Params& params, Backend& backend);

    // The state of the next step, to be written after its counters (params.h) before update().
    StepState next(double lr) const;
    // The gradient arena holds sums over the images that the counters count. Frozen params keep
    // their values. So do all params if a sum is not finite or there was no image: the state of
    // the step then has scale 0. Does not wait.
    void update();

    int64_t steps_done = 0;  // AdamW's t: the trainer counts steps that changed the weights
    // The state arenas, each as long as the trained part of the weights, and their names.
    const std::vector<float*>& state() const { return state_; }
    std::vector<std::string> state_names() const;

 private:
    struct Segment {  // neighbouring params with the same decay
        size_t begin, end;
        bool decay;
    };
    const OptimizerOptions options_;
    Params& params_;
    Backend& backend_;
    std::vector<float*> state_;
    std::vector<Segment> segments_, running_;
};

}  // namespace convoy
