// weight_average.cpp — see weight_average.h.
#include "src/train/weight_average.h"

#include <algorithm>
#include <cstring>

#include "src/base/check.h"
#include "src/base/clock.h"

namespace convoy {

OuterOptions::OuterOptions(const Config& config)
    : nesterov(config.outer == OuterKind::kNesterov),
      lr(float(config.outer_lr)),
      momentum(float(config.outer_momentum)) {}

WeightAverage::WeightAverage(const OuterOptions& outer, const ReducerOptions& reducer,
                             Params& params, Optimizer& optimizer, Backend& backend,
                             Communicator& communicator)
    : outer_(outer),
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
    kept_steps_ = optimizer_.steps_done;
}

void WeightAverage::rewind() {
    if (!begun_) return;
    for (const Arena& arena : arenas_) backend_.copy(arena.values, arena.kept, arena.size);
    optimizer_.steps_done = kept_steps_;
}

// The values become their mean over the ranks, in which this rank has `weight`. The gradient arena
// is used as scratch memory.
void WeightAverage::average(const Arena& arena, float weight) {
    const auto [values, kept, n] = arena;
    float* scratch = params_.grads;
    backend_.axpby(weight, values, 0, scratch, n);
    backend_.axpby(-weight, kept, 1, scratch, n);
    if (host_)
        backend_.download(host_, scratch, n * sizeof(float));
    else
        backend_.synchronize();
    sum({host_ ? host_ : scratch, n});
    if (host_) backend_.to_device(host_, scratch, n);
    backend_.copy(values, kept, n);
    size_t stepped = 0;
    if (values == params_.weights && optimizer_.outer()) step_outer(stepped = params_.trained_size);
    backend_.axpby(1, scratch + stepped, 1, values + stepped, n - stepped);
}

// With the mean movement d of the first n weights in the gradient arena:
//   v = momentum·v + d; w += lr·(nesterov ? d + momentum·v : v)
void WeightAverage::step_outer(size_t n) {
    const auto [nesterov, lr, momentum] = outer_;
    float *d = params_.grads, *v = optimizer_.outer();
    backend_.axpby(1, d, momentum, v, n);
    backend_.axpby(nesterov ? lr * momentum : lr, v, 1, params_.weights, n);
    if (nesterov) backend_.axpby(lr, d, 1, params_.weights, n);
}

void WeightAverage::add(const Counters& counters) {
    for (int i = 0; i < StepCounters::kSize; ++i)
        sums_[i] = counters[i] + (i < StepCounters::kSigint ? sums_[i] : 0);  // a wish counts once
}

void WeightAverage::gather(Counters& counters) {
    std::copy(std::begin(sums_), std::end(sums_), counters);
    std::fill(std::begin(sums_), std::end(sums_), 0.0f);
    const float mine = counters[StepCounters::kCount];
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
    // The weights come last: what rewind() does not undo, --outer's momentum, changes with them.
    if (counters[StepCounters::kCount] > 0) {
        const float weight = mine / counters[StepCounters::kCount];
        for (const Arena& arena : arenas_) average(arena, weight);
    }
    optimizer_.steps_done = most;
    keep();
}

}  // namespace convoy
