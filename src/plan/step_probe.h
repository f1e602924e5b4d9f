// step_probe.h — what a step costs a rank without the network, timed with the code that trains.
//
// A Trainer is handed a communicator that sums nothing and notes when it was handed what. So the
// timings hold whatever a step does, and the hand-overs come when and as large as they will.
// Linear layers are timed once more on their own, for what it costs to form their gradients from
// the factors of all ranks.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "src/plan/plan.h"
#include "src/train/trainer.h"

namespace convoy {

class StepProbe {
 public:
    // `model`: planned with backward pass. All must outlive the probe. Running statistics and the
    // state of the optimizer are worth nothing afterwards; weights stay as they are.
    StepProbe(const Config& config, Backend& backend, Model& model, Optimizer& optimizer,
              int classes);
    ~StepProbe();

    // One step over `images` random images, at most as many as the model is planned for.
    StepTiming step(int images);
    // Steps until so many seconds are over, at least `least` of them; the mean of each part, since
    // where ranks take turns on a processor the quick steps pay for the long ones.
    StepTiming steps(int images, double seconds, int least);

    // How long the gradients of linear layers take, for params().
    void time_linear_layers();

    // As of the last step: params of gradients in the order in which they were ready, and the
    // floats that travel before them.
    const std::vector<PlanParam>& params() const { return params_; }
    size_t exact_floats() const;
    size_t average_floats() const;  // what an average of --sync-every sums
    int max_images() const { return model_.max_batch(); }

 private:
    class Recorder;
    void note_params(double backward_seconds);
    double time_linear(const Param& w, Param* b, int images, Tensor x, Tensor dy);

    Backend& backend_;
    Optimizer& optimizer_;
    Model& model_;
    std::unique_ptr<Recorder> recorder_;
    std::unique_ptr<Trainer> trainer_;
    Batch batch_;  // as many images as the model is planned for
    std::vector<PlanParam> params_;
    std::map<const Param*, std::pair<double, double>> linear_;  // weights → fixed, an image
};

// The settings with which every param is handed over on its own, when it is ready.
Config param_by_param(Config config);

}  // namespace convoy
