// weight_average.cpp — see weight_average.h.
#include "src/train/weight_average.h"

#include <algorithm>
#include <cstring>

#include "src/base/check.h"
#include "src/base/clock.h"

namespace convoy {

WeightAverage::WeightAverage(Params& params, Optimizer& optimizer, Backend& backend,
                             Communicator& communicator)
    : params_(params),
      optimizer_(optimizer),
      backend_(backend),
      communicator_(communicator),
      host_(backend.host_visible() ? nullptr : backend.alloc_host(params.grads_size)),
      shared_(backend.alloc(params.updated_size)) {}

void WeightAverage::sum(std::span<float> values) {
    const auto begin = Clock::now();
    communicator_.allreduce_sum(values).get();
    seconds_ += seconds_since(begin);
}

void WeightAverage::begin() {
    if (begun_) return;
    begun_ = true;
    backend_.copy(shared_, params_.weights, params_.updated_size);
}

// values = mean over the ranks, in which this rank has `weight`. shared: what all ranks had before,
// becomes the mean; null: unknown. The gradient arena is used as scratch memory.
void WeightAverage::average(float* values, float* shared, size_t n, float weight) {
    float* scratch = params_.grads;
    backend_.axpby(weight, values, 0, scratch, n);
    if (shared) backend_.axpby(-weight, shared, 1, scratch, n);
    if (host_)
        backend_.download(host_, scratch, n * sizeof(float));
    else
        backend_.synchronize();
    sum({host_ ? host_ : scratch, n});
    if (host_) backend_.to_device(host_, scratch, n);
    if (shared) {
        backend_.axpby(1, scratch, 1, shared, n);
        scratch = shared;
    }
    backend_.copy(values, scratch, n);
}

void WeightAverage::add(const Counters& counters) {
    for (int i = 0; i < StepCounters::kSize; ++i) sums_[i] += counters[i];
}

void WeightAverage::run(Counters& counters) {
    std::copy(std::begin(sums_), std::end(sums_), counters);
    std::fill(std::begin(sums_), std::end(sums_), 0.0f);
    const float mine = counters[StepCounters::kCount];
    sum(counters);
    if (counters[StepCounters::kCount] > 0) {
        const float weight = mine / counters[StepCounters::kCount];
        average(params_.weights, shared_, params_.updated_size, weight);
        for (float* state : optimizer_.state())
            average(state, nullptr, params_.trained_size, weight);
    }
    // A rank without images takes no steps. AdamW corrects its means by the number of steps.
    const auto& own = optimizer_.steps_done;
    for (const auto& bytes : communicator_.allgather(std::as_bytes(std::span(&own, 1)))) {
        auto steps = own;
        ENSURE(bytes.size() == sizeof steps, bytes.size(), " bytes");
        std::memcpy(&steps, bytes.data(), sizeof steps);
        optimizer_.steps_done = std::max(own, steps);
    }
}

}  // namespace convoy
