// weight_average.h — `--sync-every H`: each rank trains H steps on its own, then weights and
// optimizer state become their mean over the ranks, weighted by the images each has trained.
//
//   rank 0   step ─ step ─ step ─ step ─┐            ┌─ step ─ …
//   rank 1   step ─ step ─ step ─ step ─┴─ average ──┴─ step ─ …      H = 4: a fourth of the bytes
//
// Local SGD: Stich, "Local SGD Converges Fast and Communicates Little" (ICLR 2019); momentum is
// averaged like the weights: Yu, Jin, Yang (ICML 2019). Not the same training as H = 1. What
// travels is how far the weights have moved since the last time, so a bf16 wire rounds the movement
// and not the weights; every rank ends with the same bits.
#pragma once

#include "net/communicator.h"
#include "src/model/params.h"
#include "src/train/optimizer.h"

namespace convoy {

class WeightAverage {
 public:
    // All must outlive this.
    WeightAverage(Params& params, Optimizer& optimizer, Backend& backend,
                  Communicator& communicator);

    // Before each step. The first time the weights must be equal on all ranks: they are remembered.
    void begin();
    // After a local step, with its sums.
    void add(const float (&counters)[StepCounters::kSize]);
    // Blocks until weights and optimizer state are the mean over the ranks, by images trained since
    // the last time, and the count of optimizer steps the largest of them; counters = the sums of
    // all ranks since then. Throws the communicator's Error: weights and each optimizer state are
    // then either this rank's own or the mean, never half of it.
    void run(float (&counters)[StepCounters::kSize]);

    double seconds() const { return seconds_; }  // spent in waiting for sums

 private:
    void sum(std::span<float> values);
    void average(float* values, float* shared, size_t n, float part);

    Params& params_;
    Optimizer& optimizer_;
    Backend& backend_;
    Communicator& communicator_;
    float* host_;    // what travels, where the network cannot read the device's memory; else null
    float* shared_;  // the weights after the last average
    bool begun_ = false;
    float sums_[StepCounters::kSize] = {};
    double seconds_ = 0;
};

}  // namespace convoy
