// grad_reducer.cpp — see grad_reducer.h.
#include "src/train/grad_reducer.h"

#include <algorithm>
#include <chrono>

#include "src/base/check.h"

namespace convoy {

GradReducer::GradReducer(Params& params, Backend& backend, Communicator& communicator,
                         const ReducerOptions& options)
    : params_(params),
      backend_(backend),
      communicator_(communicator),
      staged_(!backend.host_visible() && communicator.world() > 1),
      arena_(staged_ ? backend.alloc_host(params.grads_size) : params.grads) {
    cut(options);
}

void GradReducer::cut(const ReducerOptions& options) {
    // Statistics and counters are ready before the backward pass begins. They hold counts and what
    // is kept for long: in pieces so small that they travel exactly whatever the wire.
    constexpr size_t kPiece = Communicator::kExactBytes / sizeof(float);
    for (size_t end = params_.grads_size; end > params_.trained_size;) {
        const size_t begin = std::max(params_.trained_size, end > kPiece ? end - kPiece : 0);
        buckets_.push_back({begin, end, 0, 0, nullptr, 0});
        end = begin;
    }
    std::vector<Param*> params = params_.all();
    std::erase_if(params, [](Param* param) { return param->running || param->frozen; });
    std::reverse(params.begin(), params.end());
    const auto layer_of = [&](const Param* param) {
        return std::find_if(options.factors.begin(), options.factors.end(), [&](const auto& layer) {
            return layer.use && (layer.w == param || layer.b == param);
        });
    };
    std::vector<TravelParam> sizes;
    size_t end = params_.trained_size;
    for (const Param* param : params) {
        const auto layer = layer_of(param);
        const bool as_factors = layer != options.factors.end();
        sizes.push_back({end - param->offset, as_factors, as_factors && layer->b == param});
        end = param->offset;
    }
    for (const BucketSpan& part : cut_buckets(sizes, options.bucket_bytes)) {
        const Param *first = params[part.begin], *last = params[part.end - 1];
        buckets_.push_back({last->offset, first->offset + sizes[part.begin].floats,
                            int(part.end - part.begin), 0, nullptr, 0});
        if (part.as_factors)
            buckets_.back().factors =
                std::make_unique<Factors>(*layer_of(first), options.batch, backend_, communicator_);
    }
}

void GradReducer::start(std::span<const int64_t> params) {
    next_ = 0;
    sums_.clear();
    for (Bucket& bucket : buckets_) {
        bucket.left = bucket.params;
        if (bucket.factors) bucket.factors->start(params);
    }
    take_complete();
}

GradReducer::Bucket& GradReducer::bucket_of(const Param& param) {
    const auto bucket = std::find_if(buckets_.begin(), buckets_.end(), [&](const Bucket& p) {
        return p.begin <= param.offset && param.offset < p.end;
    });
    ENSURE(bucket != buckets_.end(), param.name, " is in no bucket");
    return *bucket;
}

void GradReducer::ready(const Param& param) {
    if (param.running || param.frozen) return;
    Bucket& bucket = bucket_of(param);
    ENSURE(bucket.left > 0, param.name, " is ready twice in a step");
    --bucket.left;
    take_complete();
}

bool GradReducer::take_factors(const Param& w, Tensor x, Tensor dy) {
    Bucket& bucket = bucket_of(w);
    if (!bucket.factors) return false;
    bucket.factors->put(x, dy);
    ready(w);
    return true;
}

void GradReducer::take_complete() {
    for (; next_ < buckets_.size() && buckets_[next_].left == 0; ++next_) {
        Bucket& bucket = buckets_[next_];
        if (!staged_)
            send(bucket);
        else if (bucket.factors)
            bucket.factors->stage();
        else
            bucket.download = backend_.start_download(
                arena_ + bucket.begin, params_.grads + bucket.begin, bucket.end - bucket.begin);
    }
}

void GradReducer::send(Bucket& bucket) {
    if (bucket.factors) {
        bucket.factors->send();
        return;
    }
    if (communicator_.world() == 1) return;
    if (staged_)
        backend_.wait_download(bucket.download);
    else
        backend_.synchronize();
    sums_.push_back(
        communicator_.allreduce_sum({arena_ + bucket.begin, bucket.end - bucket.begin}));
}

template <class Wait>
void GradReducer::wait_for(Wait&& wait, std::exception_ptr& first) {
    const auto begin = std::chrono::steady_clock::now();
    try {
        wait();
    } catch (...) {
        if (!first) first = std::current_exception();
    }
    waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void GradReducer::finish() {
    for (Bucket& bucket : buckets_) bucket.left = 0;
    take_complete();
    if (staged_)
        for (Bucket& bucket : buckets_) send(bucket);
    // Wait for all before throwing: the communicator writes into the arena until then. Gradients
    // are formed from factors while the last buckets still travel.
    std::exception_ptr first;
    for (Bucket& bucket : buckets_) {
        if (!bucket.factors) continue;
        wait_for([&] { bucket.factors->wait(); }, first);
        if (!first) bucket.factors->add_gradient();
    }
    auto sum = sums_.begin();
    for (Bucket& bucket : buckets_) {
        if (bucket.factors || sum == sums_.end()) continue;
        wait_for([&] { (sum++)->get(); }, first);
        if (staged_ && !first)
            backend_.to_device(arena_ + bucket.begin, params_.grads + bucket.begin,
                               bucket.end - bucket.begin);
    }
    if (first) std::rethrow_exception(first);
}

}  // namespace convoy
