// weight_average.cpp — `--sync average:H` and `diloco:H`: each rank trains H steps alone. Then all
// ranks move their weights by the mean of the ranks' changes.
//
//   rank 0   w ─ step ─ step … step ─ w₀ ─┐                                      ┌─ w' ─ step …
//   rank 1   w ─ step ─ step … step ─ w₁ ─┴─ d = Σ n_r·(w_r − w) / Σ n_r ─ outer ─┴─ w' ─ step …
//            │◄────── H steps ───────►│      n_r: images that rank r has trained
//
//   average   w' = w + d                                 local SGD: Stich (ICLR 2019)
//   diloco    v  = M·v + d                               v: the outer momentum, 0 at first
//             w' = w + LR·(d + M·v)   Nesterov           diloco:H:LR:M, by default 0.7 and 0.9
//
// DiLoCo: Douillard et al. (2023). Running statistics and the optimizer's state become the same
// mean (momentum: Yu, Jin, Yang, ICML 2019), so a checkpoint holds one state for any number of
// ranks. Every rank computes v, so v is not sent. Ranks send the change since the last average. So
// with --wire bf16 the change is rounded, not the weights; every rank ends with the same bits.
//
// Cost, N trained floats, W ranks, S optimizer arenas (SGD 1, AdamW 2): each rank sends
// 2·(W−1)/W · 4·(1+S)·N / H bytes per step, half with --wire bf16; a ring sends 2·(W−1)/W · 4·N.
// Memory: (1+S)·N floats of the last average, which all restore if a rank is lost; N floats for v.
#include <fmt/format.h>

#include <algorithm>

#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/step/sync_methods.h"

namespace convoy {
namespace {

class WeightAverage final : public Sync {
 public:
    explicit WeightAverage(const SyncParts& parts)
        : Sync(parts.communicator, parts.model.params(), parts.backend),
          config_(parts.options.config),
          optimizer_(parts.optimizer),
          host_(backend_.host_visible() ? nullptr : backend_.alloc_host(params_.grads_size)) {
        for (float* state : optimizer_.inner())
            arenas_.push_back({state, backend_.alloc(params_.state_size), params_.state_size});
        arenas_.push_back(
            {params_.weights, backend_.alloc(params_.updated_size), params_.updated_size});
    }

    // The first call stores weights and optimizer state, which must be equal on all ranks.
    void begin(const Batch&) override {
        if (begun_) return;
        begun_ = true;
        keep();
    }

    // In a step, the rank trains alone.
    void start(std::span<const int64_t>) override {}
    bool finish() override { return true; }

    bool sums_each_step() const override { return false; }
    Meeting meeting(int64_t steps) const override {
        return steps % config_.sync_every == 0 ? Meeting::kNow : Meeting::kLater;
    }
    // Sets steps_done to the largest of all ranks. Throws the communicator's Error: then the
    // weights, and each optimizer state, are either this rank's own or the mean, not a mixture.
    void meet(Counters& counters) override {
        const float images = counters[StepCounters::kCount];
        sum(counters);
        // A rank without images takes no steps. AdamW corrects its means by the number of steps.
        int64_t most = 0;
        for (const auto& steps : gather_lists(communicator_, std::vector{optimizer_.steps_done})) {
            ENSURE(steps.size() == 1, steps.size(), " numbers");
            most = std::max(most, steps[0]);
        }
        // The weights come last: with them changes DiLoCo's momentum, which rewind() cannot undo.
        if (const float all = counters[StepCounters::kCount]; all > 0)
            for (const Arena& arena : arenas_) average(arena, images / all);
        optimizer_.steps_done = most;
        keep();
    }

    void rewind() override {
        if (!begun_) return;
        for (const Arena& arena : arenas_) backend_.copy(arena.values, arena.kept, arena.size);
        optimizer_.steps_done = kept_steps_;
    }

    void changed() override { begun_ = false; }

    std::string traffic() const override {
        const int around = communicator_.around();
        const int every = config_.sync_every;
        const double mb = 2.0 * (around - 1) / around * double(floats()) *
                          (config_.wire == WireType::kBf16 ? 2e-6 : 4e-6);
        std::string text = fmt::format(
            "weights and optimizer state averaged every {} steps: {:.2f} MB per rank and step, "
            "gradients would be {:.2f}",
            every, mb / every, mb * double(params_.grads_size) / double(floats()));
        if (optimizer_.outer())
            text += fmt::format("; DiLoCo, lr {:g}, momentum {:g}", config_.outer_lr,
                                config_.outer_momentum);
        return text;
    }

    std::string memory() const override {
        return fmt::format(", {:.0f} MB of the last average", 4e-6 * double(floats()));
    }

 private:
    struct Arena {
        float *values, *kept;  // kept: after the last average, equal on all ranks
        size_t size;
    };
    void sum(std::span<float> values) {
        const auto begin = Clock::now();
        communicator_.allreduce_sum(values).get();
        waited_ += seconds_since(begin);
    }

    void keep() {
        for (const Arena& arena : arenas_) backend_.copy(arena.kept, arena.values, arena.size);
        kept_steps_ = optimizer_.steps_done;
    }

    // Of all arenas.
    size_t floats() const {
        return params_.updated_size + optimizer_.inner().size() * params_.state_size;
    }

    // out = weight · (values - kept). Returns `out`, or the host's copy for the network.
    std::span<float> change(const Arena& arena, float weight, float* out) {
        backend_.axpby(weight, arena.values, 0, out, arena.size);
        backend_.axpby(-weight, arena.kept, 1, out, arena.size);
        if (host_)
            backend_.download(host_, out, arena.size * sizeof(float));
        else
            backend_.synchronize();
        return {host_ ? host_ : out, arena.size};
    }

    // values = their weighted mean over the ranks; `weight` is this rank's weight. Uses the
    // gradient arena as scratch memory.
    void average(const Arena& arena, float weight) {
        const auto [values, kept, n] = arena;
        float* scratch = params_.grads;
        sum(change(arena, weight, scratch));
        if (host_) backend_.to_device(host_, scratch, n);
        backend_.copy(values, kept, n);
        if (values == params_.weights)
            move_weights(scratch);
        else
            backend_.axpby(1, scratch, 1, values, n);
    }

    // Moves the weights along d. The outer optimizer, if there is one, moves the trained weights.
    void move_weights(float* d) {
        float* const w = params_.weights;
        size_t stepped = 0;
        if (float* const v = optimizer_.outer()) {
            const float lr = float(config_.outer_lr), momentum = float(config_.outer_momentum);
            stepped = params_.trained_size;
            backend_.axpby(1, d, momentum, v, stepped);
            backend_.axpby(lr * momentum, v, 1, w, stepped);
            backend_.axpby(lr, d, 1, w, stepped);
        }
        backend_.axpby(1, d + stepped, 1, w + stepped, params_.updated_size - stepped);
    }

    const Config& config_;
    Optimizer& optimizer_;
    float* host_;  // a copy that the network can read, if it cannot read device memory; else null
    std::vector<Arena> arenas_;  // optimizer state, weights
    int64_t kept_steps_ = 0;
    bool begun_ = false;
};

}  // namespace

std::unique_ptr<Sync> make_weight_average(const SyncParts& parts) {
    return std::make_unique<WeightAverage>(parts);
}

}  // namespace convoy
