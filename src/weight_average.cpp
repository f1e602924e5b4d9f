// weight_average.cpp — see weight_average.h.
#include "src/weight_average.h"

#include <algorithm>
#include <chrono>

#include "src/base/check.h"

namespace convoy {

WeightAverage::WeightAverage(Params& params, Optimizer& optimizer, Backend& backend,
                             Communicator& communicator)
    : params_(params),
      optimizer_(optimizer),
      backend_(backend),
      communicator_(communicator),
      host_(backend.host_visible() ? nullptr : backend.alloc_host(params.grads_size)) {}

void WeightAverage::begin() {
    if (shared_) return;
    shared_ = backend_.alloc(params_.updated_size);
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
    communicator_.allreduce_sum({host_ ? host_ : scratch, n}).get();
    if (host_) backend_.to_device(host_, scratch, n);
    if (shared) {
        backend_.axpby(1, scratch, 1, shared, n);
        scratch = shared;
    }
    backend_.copy(values, scratch, n);
}

void WeightAverage::add(float (&tail)[Tail::kSize], bool now) {
    for (int i = 0; i < Tail::kSize; ++i) sums_[i] += tail[i];
    std::fill(std::begin(tail), std::end(tail), 0.0f);
    if (!now) return;
    const auto begin = std::chrono::steady_clock::now();
    std::swap(tail, sums_);
    const float mine = tail[Tail::kCount];
    communicator_.allreduce_sum(tail).get();
    if (tail[Tail::kCount] > 0) {
        const float part = mine / tail[Tail::kCount];
        average(params_.weights, shared_, params_.updated_size, part);
        for (float* state : optimizer_.state()) average(state, nullptr, params_.trained_size, part);
    }
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace convoy
