// weight_average.h — `--sync-every H`: each rank trains H steps on its own, then weights and
// optimizer state become their mean over the ranks, weighted by the images each has trained.
//
//   rank 0   step ─ step ─ step ─ step ─┐            ┌─ step ─ …
//   rank 1   step ─ step ─ step ─ step ─┴─ average ──┴─ step ─ …      H = 4: a fourth of the bytes
//
// Local SGD: Stich, "Local SGD Converges Fast and Communicates Little" (ICLR 2019); momentum is
// averaged like the weights: Yu, Jin, Yang (ICML 2019). Not the same training as H = 1. Ranks send
// the change of their weights since the last average, so a bf16 wire rounds the change and not the
// weights; every rank ends with the same bits.
#pragma once

#include "net/communicator.h"
#include "src/model/params.h"
#include "src/train/optimizer.h"
#include "src/train/step_counters.h"

namespace convoy {

class WeightAverage {
 public:
    // All must outlive this.
    WeightAverage(Params& params, Optimizer& optimizer, Backend& backend,
                  Communicator& communicator);

    // Before each step. The first call keeps the weights, which must be equal on all ranks.
    void begin();
    // After a local step, with its counters.
    void add(const Counters& counters);
    // Blocks until weights and optimizer state are the mean over the ranks, weighted by the images
    // trained since the last time, and steps_done is the largest of the ranks'; counters = the sums
    // of all ranks since then. Throws the communicator's Error: weights and each optimizer state
    // are then either this rank's own or the mean, not a mixture.
    void run(Counters& counters);

    double seconds() const { return seconds_; }  // spent waiting for sums

 private:
    void sum(std::span<float> values);
    void average(float* values, float* shared, size_t n, float weight);

    Params& params_;
    Optimizer& optimizer_;
    Backend& backend_;
    Communicator& communicator_;
    float* host_;    // what travels, where the network cannot read the device's memory; else null
    float* shared_;  // the weights after the last average, equal on all ranks
    bool begun_ = false;
    Counters sums_ = {};
    double seconds_ = 0;
};

}  // namespace convoy
