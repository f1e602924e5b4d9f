// replicas.cpp — see replicas.h.
#include "src/train/replicas.h"

#include <algorithm>
#include <barrier>
#include <future>

#include "src/base/check.h"

namespace convoy {

Replicas::Replicas(Model& model, std::span<const std::unique_ptr<Backend>> backends, int images)
    : params_(model.params()) {
    for (const auto& backend : backends) {
        ENSURE(backend->host_visible(), "replicas on a device with memory of its own");
        replicas_.push_back({*backend, model.replica(*backend)});
        activation_bytes_ += replicas_.back().model->plan(images, /*training=*/true);
    }
}

// A slice of the model's gradients = the sum of the replicas', always in the same order.
void Replicas::add_up(size_t part) {
    const size_t n = params_.grads_size, parts = replicas_.size();
    const size_t begin = n * part / parts, end = n * (part + 1) / parts;
    float* const sum = params_.grads;
    const auto grads = [&](size_t r) { return replicas_[r].model->params().grads; };
    // The counters of this rank are there already; the replicas count loss and hits alone.
    const size_t own = std::clamp(params_.updated_size, begin, end);
    std::copy(grads(0) + begin, grads(0) + own, sum + begin);
    for (size_t i = own; i < end; ++i) sum[i] += grads(0)[i];
    for (size_t r = 1; r < parts; ++r) {
        const float* const of = grads(r);
        for (size_t i = begin; i < end; ++i) sum[i] += of[i];
    }
}

void Replicas::train(std::span<const Piece> pieces, const Train& train) {
    std::barrier<> passed(std::ssize(replicas_));
    std::atomic<bool> all_well = true;
    const auto one = [&](size_t r) {
        Replica& own = replicas_[r];
        Params& params = own.model->params();
        std::exception_ptr failure;
        try {
            std::fill_n(params.grads, params.grads_size, 0.0f);
            for (size_t i = r; i < pieces.size(); i += replicas_.size()) {
                Piece piece = pieces[i];
                piece.pass.refresh = i == r;  // each has its own copy of the weights in bf16
                piece.pass.trace = {};        // its track has one writer
                train(*own.model, own.backend, piece, params.counters() + StepCounters::kLoss);
            }
            own.backend.synchronize();
        } catch (...) {
            failure = std::current_exception();
            all_well = false;
        }
        passed.arrive_and_wait();  // until all gradients are complete
        if (failure) std::rethrow_exception(failure);
        if (all_well) add_up(r);
    };
    std::vector<std::future<void>> others;
    for (size_t r = 1; r < replicas_.size(); ++r)
        others.push_back(std::async(std::launch::async, one, r));
    std::exception_ptr failure;
    try {
        one(0);
    } catch (...) {
        failure = std::current_exception();
    }
    for (auto& other : others) {
        try {
            other.get();
        } catch (...) {
            if (!failure) failure = std::current_exception();
        }
    }
    if (failure) std::rethrow_exception(failure);
}

}  // namespace convoy
