// weight_average.cpp — see weight_average.h.
#include "src/train/weight_average.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "src/base/check.h"
#include "src/base/clock.h"

namespace convoy {

WeightAverage::WeightAverage(const SyncParts& parts)
    : Sync(parts.communicator),
      every_(parts.config.sync_every),
      outer_(parts.config.outer != OuterKind::kOff),
      nesterov_(parts.config.outer == OuterKind::kNesterov),
      bf16_wire_(parts.config.wire == WireType::kBf16),
      lr_(float(parts.config.outer_lr)),
      momentum_(float(parts.config.outer_momentum)),
      params_(parts.model.params()),
      optimizer_(parts.optimizer),
      backend_(parts.backend),
      nobody_(make_single_rank()),
      alone_(params_, backend_, *nobody_, reducer_options(parts)),
      host_(backend_.host_visible() ? nullptr : backend_.alloc_host(params_.grads_size)) {
    for (float* state : optimizer_.inner())
        arenas_.push_back({state, backend_.alloc(params_.state_size), params_.state_size});
    arenas_.push_back(
        {params_.weights, backend_.alloc(params_.updated_size), params_.updated_size});
}

void WeightAverage::sum(std::span<float> values) {
    const auto begin = Clock::now();
    communicator_.allreduce_sum(values).get();
    seconds_ += seconds_since(begin);
}

void WeightAverage::begin(const Batch&) {
    if (begun_) return;
    begun_ = true;
    keep();
}

void WeightAverage::keep() {
    for (const Arena& arena : arenas_) backend_.copy(arena.kept, arena.values, arena.size);
    kept_steps_ = optimizer_.steps_done;
}

void WeightAverage::rewind() {
    if (!begun_) return;
    for (const Arena& arena : arenas_) backend_.copy(arena.values, arena.kept, arena.size);
    optimizer_.steps_done = kept_steps_;
}

// out = weight · (values - kept). Returns `out`, or the host's copy for the network.
std::span<float> WeightAverage::change(const Arena& arena, float weight, float* out) {
    backend_.axpby(weight, arena.values, 0, out, arena.size);
    backend_.axpby(-weight, arena.kept, 1, out, arena.size);
    if (host_)
        backend_.download(host_, out, arena.size * sizeof(float));
    else
        backend_.synchronize();
    return {host_ ? host_ : out, arena.size};
}

// values = their weighted mean over the ranks; `weight` is this rank's weight. Uses the gradient
// arena as scratch memory.
void WeightAverage::average(const Arena& arena, float weight) {
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
void WeightAverage::move_weights(float* d) {
    float* const w = params_.weights;
    size_t stepped = 0;
    if (float* const v = optimizer_.outer()) {
        stepped = params_.trained_size;
        backend_.axpby(1, d, momentum_, v, stepped);
        backend_.axpby(nesterov_ ? lr_ * momentum_ : lr_, v, 1, w, stepped);
        if (nesterov_) backend_.axpby(lr_, d, 1, w, stepped);
    }
    backend_.axpby(1, d + stepped, 1, w + stepped, params_.updated_size - stepped);
}

void WeightAverage::meet(Counters& counters) {
    const float images = counters[StepCounters::kCount];
    sum(counters);
    // A rank without images takes no steps. AdamW corrects its means by the number of steps.
    const int64_t own = optimizer_.steps_done;
    int64_t most = own;
    for (const auto& bytes : communicator_.allgather(std::as_bytes(std::span(&own, 1)))) {
        int64_t steps = 0;
        ENSURE(bytes.size() == sizeof steps, bytes.size(), " bytes");
        std::memcpy(&steps, bytes.data(), sizeof steps);
        most = std::max(most, steps);
    }
    // The weights come last: DiLoCo's momentum changes with them, and rewind() cannot undo that.
    if (const float all = counters[StepCounters::kCount]; all > 0)
        for (const Arena& arena : arenas_) average(arena, images / all);
    optimizer_.steps_done = most;
    keep();
}

size_t WeightAverage::floats() const {
    return params_.updated_size + optimizer_.inner().size() * params_.state_size;
}

std::string WeightAverage::traffic() const {
    const int around = communicator_.around();
    const double mb = 2.0 * (around - 1) / around * double(floats()) * (bf16_wire_ ? 2e-6 : 4e-6);
    std::string text = fmt::format(
        "weights and optimizer state averaged every {} steps: {:.2f} MB per rank and step, "
        "gradients would be {:.2f}",
        every_, mb / double(every_), mb * double(params_.grads_size) / double(floats()));
    if (outer_) text += fmt::format("; DiLoCo, lr {:g}, momentum {:g}", lr_, momentum_);
    return text;
}

std::string WeightAverage::memory() const {
    return fmt::format(", {:.0f} MB of the last average", 4e-6 * double(floats()));
}

}  // namespace convoy
