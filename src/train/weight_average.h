// weight_average.h — `--sync average:H`: each rank trains H steps on its own, then weights and
// optimizer state become their mean over the ranks, weighted by the images each has trained.
//
//   rank 0   step ─ step ─ step ─ step ─┐            ┌─ step ─ …
//   rank 1   step ─ step ─ step ─ step ─┴─ average ──┴─ step ─ …      H = 4: a fourth of the bytes
//
// Local SGD: Stich, "Local SGD Converges Fast and Communicates Little" (ICLR 2019); momentum is
// averaged like the weights: Yu, Jin, Yang (ICML 2019). Not the same training as H = 1. Ranks send
// the change since the last average, so a bf16 wire rounds the change and not the weights; every
// rank ends with the same bits. What was then is kept, so that the steps since can be redone.
// --sync diloco takes the mean movement as a gradient with a momentum of its own (outer.md).
#pragma once

#include "net/communicator.h"
#include "src/model/params.h"
#include "src/train/grad_reducer.h"
#include "src/train/optimizer.h"

namespace convoy {

struct AverageOptions {
    AverageOptions(const Config& config);
    bool nesterov;
    float lr, momentum;
};

class WeightAverage final : public Sync {
 public:
    // All must outlive this.
    WeightAverage(const AverageOptions& options, const ReducerOptions& reducer, Params& params,
                  Optimizer& optimizer, Backend& backend, Communicator& communicator);

    bool is_local() const override { return true; }
    bool gathers() const override { return true; }
    // The first call keeps weights and optimizer state, which must be equal on
    // all ranks.
    void begin(const Batch&) override;
    // A step is that of a rank alone.
    void start(std::span<const int64_t> images) override { alone_.start(images); }
    void ready(const Param& param) override { alone_.ready(param); }
    bool finish() override { return alone_.finish(); }
    void add(const Counters& counters) override;
    // Blocks until weights (without DiLoCo) and optimizer state are the mean over the ranks,
    // weighted by the images trained since the last gather(), and steps_done is the largest of the
    // ranks'; counters = the sums of all ranks since the last gather(). Throws the communicator's
    // Error: weights and each optimizer state are then either this rank's own or the mean, not a
    // mixture.
    void gather(Counters& counters) override;
    // Weights and optimizer state become those after the last complete average.
    void rewind() override;
    void changed() override { begun_ = false; }

    double seconds_waited() const override { return seconds_; }  // for sums

 private:
    void sum(std::span<float> values);
    void keep();
    struct Arena {
        float *values, *kept;  // kept: after the last average, equal on all ranks
        size_t size;
    };
    std::span<float> change(const Arena& arena, float weight, float* out);
    void average(const Arena& arena, float weight);
    void move_weights(float* d);

    const AverageOptions options_;
    Params& params_;
    Optimizer& optimizer_;
    Backend& backend_;
    Communicator& communicator_;
    const std::unique_ptr<Communicator> nobody_;
    GradReducer alone_;
    float* host_;  // what travels, where the network cannot read the device's memory; else null
    std::vector<Arena> arenas_;  // optimizer state, weights
    int64_t kept_steps_ = 0;
    bool begun_ = false;
    Counters sums_ = {};
    float images_ = 0;  // of this rank since the last gather()
    double seconds_ = 0;
};

}  // namespace convoy
