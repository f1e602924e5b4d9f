#include "src/step/replicas.h"

#include <algorithm>

#include "src/base/check.h"

namespace convoy {

class Replicas::Keeper final : public GradListener {
 public:
    Keeper(Replicas& all, Backend& backend, int row) : all_(all), backend_(backend), row_(row) {}
    bool take_factors(const Param& w, Tensor x, Tensor dy) override {
        for (Joined& layer : all_.joined_)
            if (layer.w->name == w.name) {
                put(layer.x, x);
                put(layer.dy, dy);
                return true;
            }
        return false;
    }

 private:
    void put(Tensor& rows, Tensor from) {
        {
            std::lock_guard lock(all_.joined_mutex_);
            const Shape one = from.shape();
            if (!rows) rows = all_.backend_.alloc({all_.most_, one.H, one.W, one.C}, from.type);
        }
        backend_.copy(rows.images(row_, row_ + from.N), from);
    }

    Replicas& all_;
    Backend& backend_;
    const int row_;
};

Replicas::Replicas(Model& model, Backend& backend,
                   std::span<const std::unique_ptr<Backend>> backends, int images)
    : params_(model.params()),
      backend_(backend),
      most_(model.max_batch()),
      passed_(std::ssize(backends)),
      done_(std::ssize(backends)) {
    size_t begin = 0;
    for (Param* w : params_.all()) {
        if (!w->is_linear || w->frozen) continue;
        Param* const b = params_.find(layer_name(*w) + ".bias");
        joined_.push_back({w, b && !b->frozen ? b : nullptr});
        summed_.push_back({begin, w->offset});
        begin = w->offset + w->shape.elems();
    }
    summed_.push_back({begin, params_.grads_size});
    for (const auto& backend : backends) {
        ENSURE(backend->host_visible(), "replicas on a device with memory of its own");
        replicas_.push_back({*backend, model.replica(*backend)});
        activation_bytes_ += replicas_.back().model->plan(images, /*training=*/true);
    }
    try {
        for (size_t r = 1; r < replicas_.size(); ++r) threads_.emplace_back([this, r] { work(r); });
    } catch (...) {
        stop();
        throw;
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

// Adds a slice of the replicas' gradients to the model's gradients, always in the same order.
void Replicas::add_up(size_t part) {
    const size_t parts = replicas_.size();
    float* const sum = params_.grads;
    for (const auto& [first, last] : summed_) {
        const size_t n = last - first;
        const size_t begin = first + n * part / parts, end = first + n * (part + 1) / parts;
        for (const Replica& replica : replicas_) {
            const float* const of = replica.model->params().grads;
            for (size_t i = begin; i < end; ++i) sum[i] += of[i];
        }
    }
}

void Replicas::take_part(size_t replica) {
    Replica& own = replicas_[replica];
    Params& params = own.model->params();
    try {
        for (const auto& [begin, end] : summed_)
            std::fill(params.grads + begin, params.grads + end, 0.0f);
        for (size_t i = replica; i < parts_.size(); i += replicas_.size()) {
            MicroBatch part = parts_[i];
            Keeper keeper(*this, own.backend, part.begin);
            part.model = own.model.get(), part.backend = &own.backend;
            part.listener = &keeper;
            part.is_last = false;              // the sums over ranks start after all replicas
            part.pass.groups = part.groups;    // of this copy
            part.pass.refresh = i == replica;  // each replica has its copy of the weights in bf16
            part.pass.trace = {};              // a track has one writer
            (*forward_)(part);
            (*backward_)(part);
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

void Replicas::run(std::span<MicroBatch> parts, const Work& forward, const Work& backward) {
    parts_ = parts, forward_ = &forward, backward_ = &backward;
    for (Replica& replica : replicas_) replica.failure = nullptr;
    ++rounds_;
    rounds_.notify_all();
    take_part(0);
    for (const Replica& replica : replicas_)
        if (replica.failure) std::rethrow_exception(replica.failure);
    const int rows = parts.empty() ? 0 : parts.back().end;
    for (const Joined& layer : joined_)
        if (layer.x)
            backend_.linear_grad_w(layer.x.images(0, rows), layer.dy.images(0, rows), layer.w->grad,
                                   layer.b ? layer.b->grad.floats() : nullptr);
}

}  // namespace convoy
