// replicas.cpp — see replicas.h.
#include "src/train/replicas.h"

#include <algorithm>
#include <system_error>

#include "src/base/check.h"

namespace convoy {

Replicas::Replicas(Model& model, std::span<const std::unique_ptr<Backend>> backends, int images)
    : params_(model.params()), passed_(std::ssize(backends)), done_(std::ssize(backends)) {
    for (const auto& backend : backends) {
        ENSURE(backend->host_visible(), "replicas on a device with memory of its own");
        replicas_.push_back({*backend, model.replica(*backend)});
        activation_bytes_ += replicas_.back().model->plan(images, /*training=*/true);
    }
    try {
        for (size_t r = 1; r < replicas_.size(); ++r) threads_.emplace_back([this, r] { work(r); });
    } catch (const std::system_error& error) {
        stop();
        fail("no thread for each of ", replicas_.size(), " replicas: ", error.what(),
             "; give fewer by --replicas");
    }
}

void Replicas::stop() noexcept {
    stops_ = true;
    ++rounds_;
    rounds_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void Replicas::work(size_t replica) {
    for (uint32_t round = 0;; ++round) {
        rounds_.wait(round);
        if (stops_) return;
        take_part(replica);
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

void Replicas::take_part(size_t replica) {
    Replica& own = replicas_[replica];
    Params& params = own.model->params();
    try {
        std::fill_n(params.grads, params.grads_size, 0.0f);
        for (size_t i = replica; i < pieces_.size(); i += replicas_.size()) {
            Piece piece = pieces_[i];
            piece.pass.refresh = i == replica;  // each has its own copy of the weights in bf16
            piece.pass.trace = {};              // its track has one writer
            (*train_)(*own.model, own.backend, piece, params.counters() + StepCounters::kLoss);
        }
        own.backend.synchronize();
    } catch (...) {
        own.failure = std::current_exception();
    }
    passed_.arrive_and_wait();
    if (std::ranges::none_of(replicas_, [](const Replica& r) { return bool(r.failure); }))
        add_up(replica);
    done_.arrive_and_wait();
}

void Replicas::train(std::span<const Piece> pieces, const Train& train) {
    pieces_ = pieces, train_ = &train;
    for (Replica& replica : replicas_) replica.failure = nullptr;
    ++rounds_;
    rounds_.notify_all();
    take_part(0);
    for (const Replica& replica : replicas_)
        if (replica.failure) std::rethrow_exception(replica.failure);
}

}  // namespace convoy
