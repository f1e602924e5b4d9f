// weight_average.h — `--sync average:H` and `diloco:H`: each rank trains H steps alone. Then all
// ranks move their weights by the mean of the ranks' changes.
//
//   rank 0   w ─ step ─ step … step ─ w₀ ─┐                                      ┌─ w' ─ step …
//   rank 1   w ─ step ─ step … step ─ w₁ ─┴─ d = Σ n_r·(w_r − w) / Σ n_r ─ outer ─┴─ w' ─ step …
//            │◄────── H steps ───────►│      n_r: images that rank r has trained
//
//   average   w' = w + d                                 local SGD: Stich (ICLR 2019)
//   diloco    v  = M·v + d                               v: the outer momentum, 0 at first
//             w' = w + LR·(d + M·v)   Nesterov           diloco:H:LR:M, by default 0.7 and 0.9
//             w' = w + LR·v           SGD                LR = 1, M = 0: average, bit for bit
//
// DiLoCo: Douillard et al. (2023). Running statistics and the optimizer's state become their plain
// mean (momentum: Yu, Jin, Yang, ICML 2019), so a checkpoint holds one state for any number of
// ranks. Every rank computes v, so v is not sent. Ranks send the change since the last average. So
// with --wire bf16 the change is rounded, not the weights; every rank ends with the same bits.
//
// Cost, N trained floats, W ranks, S optimizer arenas (SGD 1, AdamW 2): each rank sends
// 2·(W−1)/W · 4·(1+S)·N / H bytes per step, half with --wire bf16; a ring sends 2·(W−1)/W · 4·N.
// Memory: (1+S)·N floats of the last average, which all restore if a rank is lost; N floats for v.
#pragma once

#include "src/train/grad_reducer.h"

namespace convoy {

class WeightAverage final : public Sync {
 public:
    explicit WeightAverage(const SyncParts& parts);

    // The first call stores weights and optimizer state, which must be equal on all ranks.
    void begin(const Batch&) override;
    // In a step, the rank trains alone.
    void start(std::span<const int64_t> images) override { alone_.start(images); }
    void ready(const Param& param) override { alone_.ready(param); }
    bool finish() override { return alone_.finish(); }

    bool sums_each_step() const override { return false; }
    Meeting meeting(int64_t steps) const override {
        return steps % every_ == 0 ? Meeting::kNow : Meeting::kLater;
    }
    // Sets steps_done to the largest of all ranks. Throws the communicator's Error: then the
    // weights, and each optimizer state, are either this rank's own or the mean, not a mixture.
    void meet(Counters& counters) override;
    void rewind() override;
    void changed() override { begun_ = false; }

    double seconds_waited() const override { return seconds_; }  // for sums
    std::string traffic() const override;
    std::string memory() const override;

 private:
    struct Arena {
        float *values, *kept;  // kept: after the last average, equal on all ranks
        size_t size;
    };
    void sum(std::span<float> values);
    void keep();
    size_t floats() const;  // of all arenas
    std::span<float> change(const Arena& arena, float weight, float* out);
    void average(const Arena& arena, float weight);
    void move_weights(float* d);

    const int64_t every_;  // H
    const bool outer_, nesterov_, bf16_wire_;
    const float lr_, momentum_;  // of the outer optimizer
    Params& params_;
    Optimizer& optimizer_;
    Backend& backend_;
    const std::unique_ptr<Communicator> nobody_;
    GradReducer alone_;
    float* host_;  // a copy that the network can read, if it cannot read device memory; else null
    std::vector<Arena> arenas_;  // optimizer state, weights
    int64_t kept_steps_ = 0;
    bool begun_ = false;
    double seconds_ = 0;
};

}  // namespace convoy
