// step_probe.h — what a step costs a rank without the network, timed with the code that trains.
//
// A Trainer gets a communicator that sends nothing and notes when each gradient is handed to it.
// Linear layers are timed again by themselves, to learn what it costs to form their gradients from
// the factors of all ranks.
#pragma once

#include <memory>
#include <vector>

#include "src/plan/plan.h"
#include "src/train/trainer.h"

namespace convoy {

class StepProbe {
 public:
    // `model`: planned with backward pass. All must outlive the probe. Weights stay as they are;
    // running statistics and optimizer state do not. Where `image_seconds` is not 0, a step sleeps
    // so long for each image in place of computing, as bench train --compute does.
    StepProbe(const Config& config, Backend& backend, Model& model, Optimizer& optimizer,
              int classes, double image_seconds = 0);
    ~StepProbe();

    // One step over `images` random images, at most as many as the model is planned for.
    StepTiming step(int images);
    // The mean of at least two steps, over at least so many seconds. The mean, because where ranks
    // share a processor a quick step of one is a slow step of another.
    StepTiming steps(int images, double seconds);

    // Times the gradients of linear layers by themselves, for params().
    void time_linear_layers();

    // Trained parameters in the order of the backward pass; `ready` as of the last step.
    const std::vector<PlanParam>& params() const { return params_; }
    // Statistics and counters, which are summed before the gradients.
    size_t exact_floats() const;
    size_t average_floats() const;  // what an average of --sync average sums
    int max_images() const { return model_.max_batch(); }
    int threads() const { return backend_.threads(); }

 private:
    class Recorder;

    Backend& backend_;
    Optimizer& optimizer_;
    Model& model_;
    std::unique_ptr<Recorder> recorder_;
    std::unique_ptr<Trainer> trainer_;
    double image_seconds_;
    Batch batch_;  // as many images as the model is planned for
    std::vector<PlanParam> params_;
    struct Linear {  // a layer worth timing
        Param *w, *b;
        size_t place;  // of its weights in params_
    };
    std::vector<Linear> linear_;
};

}  // namespace convoy
