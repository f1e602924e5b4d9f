// weight_average.cpp — see weight_average.h.
#include "src/train/weight_average.h"

#include <algorithm>
#include <cstring>

#include "src/base/check.h"
#include "src/base/clock.h"

namespace convoy {

AverageOptions::AverageOptions(const Config& config)
    : nesterov(config.outer == OuterKind::kNesterov),
      lr(float(config.outer_lr)),
      momentum(float(config.outer_momentum)) {}

WeightAverage::WeightAverage(const AverageOptions& options, const ReducerOptions& reducer,
                             Params& params, Optimizer& optimizer, Backend& backend,
                             Communicator& communicator)
    : options_(options),
      params_(params),
      optimizer_(optimizer),
      backend_(backend),
      communicator_(communicator),
      nobody_(make_single_rank()),
      alone_(params, backend, *nobody_, reducer),
      host_(backend.host_visible() ? nullptr : backend.alloc_host(params.grads_size)) {
    for (float* state : optimizer.inner())
        arenas_.push_back({state, backend.alloc(params.state_size), params.state_size});
    arenas_.push_back({params.weights, backend.alloc(params.updated_size), params.updated_size});
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
    kept_steps_ = optimizer_.steps_done, images_ = 0;
}

void WeightAverage::rewind() {
    if (!begun_) return;
    for (const Arena& arena : arenas_) backend_.copy(arena.values, arena.kept, arena.size);
    optimizer_.steps_done = kept_steps_;
}

// out = weight · (values - kept), returned as the network reads it.
std::span<float> WeightAverage::change(const Arena& arena, float weight, float* out) {
    backend_.axpby(weight, arena.values, 0, out, arena.size);
    backend_.axpby(-weight, arena.kept, 1, out, arena.size);
    if (host_)
        backend_.download(host_, out, arena.size * sizeof(float));
    else
        backend_.synchronize();
    return {host_ ? host_ : out, arena.size};
}

// The values become their mean over the ranks, in which this rank has `weight`. The gradient arena
// is used as scratch memory.
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

// The weights go along d, their mean movement. With DiLoCo, the trained ones go by:
//   v = momentum·v + d; w += lr·(nesterov ? d + momentum·v : v)
void WeightAverage::move_weights(float* d) {
    float* const w = params_.weights;
    size_t stepped = 0;
    if (float* const v = optimizer_.outer()) {
        const float momentum = options_.momentum, lr = options_.lr;
        stepped = params_.trained_size;
        backend_.axpby(1, d, momentum, v, stepped);
        backend_.axpby(options_.nesterov ? lr * momentum : lr, v, 1, w, stepped);
        if (options_.nesterov) backend_.axpby(lr, d, 1, w, stepped);
    }
    backend_.axpby(1, d + stepped, 1, w + stepped, params_.updated_size - stepped);
}

void WeightAverage::add(const Counters& counters) {
    images_ += counters[StepCounters::kCount];
    for (int i = 0; i < StepCounters::kSize; ++i)
        sums_[i] = counters[i] + (i < StepCounters::kSigint ? sums_[i] : 0);  // a wish counts once
}

void WeightAverage::gather(Counters& counters) {
    std::copy(std::begin(sums_), std::end(sums_), counters);
    std::fill(std::begin(sums_), std::end(sums_), 0.0f);
    counters[StepCounters::kImages] = images_;
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
    // The weights come last: what rewind() does not undo, DiLoCo's momentum, changes with them.
    if (counters[StepCounters::kImages] > 0) {
        const float weight = images_ / counters[StepCounters::kImages];
        for (const Arena& arena : arenas_) average(arena, weight);
    }
    optimizer_.steps_done = most;
    keep();
}

}  // namespace convoy
