// weight_average.cpp — see weight_average.h.
#include "src/train/weight_average.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "src/base/check.h"

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
    const auto begin = std::chrono::steady_clock::now();
    communicator_.allreduce_sum(values).get();
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void WeightAverage::begin() {
    if (begun_) return;
    begun_ = true;
    backend_.copy(shared_, params_.weights, params_.updated_size);
}

// values = mean over the ranks, where `part` is this rank's weight in it; `shared` (or null) is
// what all ranks had before, and becomes the mean. The gradients, done with, are the scratch
// memory.
void WeightAverage::average(float* values, float* shared, size_t n, float part) {
    float* scratch = params_.grads;
    backend_.axpby(part, values, 0, scratch, n);
    if (shared) backend_.axpby(-part, shared, 1, scratch, n);
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

void WeightAverage::add(const float (&counters)[StepCounters::kSize]) {
    for (int i = 0; i < StepCounters::kSize; ++i) sums_[i] += counters[i];
}

void WeightAverage::run(float (&counters)[StepCounters::kSize]) {
    std::copy(std::begin(sums_), std::end(sums_), counters);
    std::fill(std::begin(sums_), std::end(sums_), 0.0f);
    const float mine = counters[StepCounters::kCount];
    sum(counters);
    if (counters[StepCounters::kCount] > 0) {
        const float part = mine / counters[StepCounters::kCount];
        average(params_.weights, shared_, params_.updated_size, part);
        for (float* state : optimizer_.state()) average(state, nullptr, params_.trained_size, part);
    }
    // A rank without images takes no steps; they count for what optimizers correct by their number.
    const auto& own = optimizer_.steps_done;
    for (const auto& bytes : communicator_.allgather(std::as_bytes(std::span(&own, 1)))) {
        auto steps = own;
        ENSURE(bytes.size() == sizeof steps, bytes.size(), " bytes");
        std::memcpy(&steps, bytes.data(), sizeof steps);
        optimizer_.steps_done = std::max(own, steps);
    }
}

}  // namespace convoy
