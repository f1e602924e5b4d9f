#include "src/step/grad_reducer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/base/check.h"
#include "src/base/clock.h"

namespace convoy {

GradReducer::GradReducer(Params& params, Backend& backend, Communicator& communicator,
                         const Config& config, size_t bucket_bytes, Track* track, SpanSink* device)
    : Sync(communicator, params, backend),
      track_(track),
      device_(device),
      batch_(config.batch),
      bf16_wire_(config.wire == WireType::kBf16),
      choices_(choose_factors(params, batch_, {communicator.world(), communicator.around()},
                              config.factors)),
      staged_(!backend.host_visible() && communicator.world() > 1) {
    // Statistics and counters are sent in parts so small that --wire bf16 does not round them.
    constexpr size_t kMost = Communicator::kExactBytes / sizeof(float);
    for (size_t end = params_.grads_size; end > params_.trained_size;) {
        const size_t begin = std::max(params_.trained_size, end > kMost ? end - kMost : 0);
        buckets_.push_back({begin, end});
        end = begin;
    }
    // Then the params. A layer sent as factors has a bucket of its own, for its weights. A bucket
    // is closed when it is large enough: the first at a quarter, so that sending starts early.
    const std::vector<Param*> order = params_.backward_order();
    size_t end = params_.trained_size, limit = bucket_bytes / 4;
    if (!order.empty()) end = std::min(end, params_.owned[0].end);
    bool is_open = false;  // the last bucket takes the next param too
    for (const Param* param : order) {
        const size_t begin = param->offset, before = std::exchange(end, begin);
        const auto layer = std::ranges::find_if(choices_, [&](const FactorChoice& one) {
            return one.use && (one.w == param || one.b == param);
        });
        if (layer != choices_.end()) {
            if (std::exchange(is_open, false)) limit = bucket_bytes;
            if (layer->w == param)
                buckets_.push_back(
                    {begin, before, 1, 0,
                     std::make_unique<Factors>(*layer, batch_, backend_, communicator_)});
            continue;
        }
        if (!is_open) buckets_.push_back({begin, before});
        Bucket& bucket = buckets_.back();
        bucket.begin = begin, ++bucket.params;
        is_open = (bucket.end - bucket.begin) * sizeof(float) < limit;
        if (!is_open) limit = bucket_bytes;
    }
}

GradReducer::~GradReducer() {
    for (Bucket& bucket : buckets_)
        for (std::future<void>& sum : bucket.sums)
            if (sum.valid()) sum.wait();
}

// Decides how the gradients of GPUs are summed. Collective, so it waits for the first step, which
// may be repeated if a rank is lost.
void GradReducer::choose_memory() {
    std::vector<std::string> errors;
    if (communicator_.world() > 1 && communicator_.around() == 1) {
        const std::span block(params_.grads, reinterpret_cast<float*>(params_.block() + 1));
        std::string mine, why;
        try {
            mine = backend_.share(block);
        } catch (const Error& error) {
            why = error.what();
        }
        const std::vector<std::string> all = gather_lists(communicator_, mine);
        if (std::ranges::count(all, "") == 0) try {
                peers_ = backend_.open_peers(block, all, communicator_.rank());
            } catch (const Error& error) {
                why = error.what();
            }
        errors = gather_lists(communicator_, why);
        if (std::ranges::count(errors, "") < std::ssize(errors)) peers_ = nullptr;
    }
    staged_begin_ = peers_ ? params_.trained_size : 0;
    arena_ = staged_ ? backend_.alloc_host(params_.grads_size - staged_begin_) : params_.grads;
    if (!staged_) return;
    notice_ = peers_ ? "the GPUs sum gradients in each other's memory"
                     : "gradients go through host memory";
    for (size_t rank = 0; rank < errors.size(); ++rank)
        if (!errors[rank].empty()) notice_ += cat("; rank ", rank, ": ", errors[rank]);
}

void GradReducer::start(std::span<const int64_t> images) {
    if (!arena_) choose_memory();
    next_ = 0, summed_ = nullptr;
    for (Bucket& bucket : buckets_) {
        bucket.left = bucket.params;
        bucket.sums.clear();
        if (bucket.factors) bucket.factors->start(images);
    }
    send_complete();
}

GradReducer::Bucket& GradReducer::bucket_of(const Param& param) {
    const auto bucket = std::find_if(buckets_.begin(), buckets_.end(), [&](const Bucket& one) {
        return one.begin <= param.offset && param.offset < one.end;
    });
    ENSURE(bucket != buckets_.end(), param.name, " is in no bucket");
    return *bucket;
}

void GradReducer::ready(const Param& param) {
    if (param.running || param.frozen) return;
    Bucket& bucket = bucket_of(param);
    ENSURE(bucket.left > 0, param.name, " is ready twice in a step");
    --bucket.left;
    send_complete();
}

bool GradReducer::take_factors(const Param& w, Tensor x, Tensor dy) {
    Bucket& bucket = bucket_of(w);
    if (!bucket.factors) return false;
    bucket.factors->put(x, dy);
    ready(w);
    return true;
}

void GradReducer::send_complete() {
    for (; next_ < buckets_.size() && buckets_[next_].left == 0; ++next_) {
        Bucket& bucket = buckets_[next_];
        if (!staged_)
            send(bucket);
        else if (gpus_sum(bucket))
            bucket.download = backend_.start_download(nullptr, nullptr, 0);
        else if (bucket.factors)
            bucket.download = bucket.factors->start_download();
        else
            bucket.download =
                backend_.start_download(host(bucket), params_.grads + bucket.begin, bucket.size());
    }
}

void GradReducer::send(Bucket& bucket) {
    if (communicator_.world() == 1) return;
    const Span span = this->span(kTraceSendBucket, bucket);
    if (staged_)
        backend_.wait_download(bucket.download);
    else
        backend_.synchronize();
    if (gpus_sum(bucket))
        sum_by_peers(&bucket);
    else if (bucket.factors)
        bucket.sums = bucket.factors->gather();
    else
        bucket.sums.push_back(communicator_.allreduce_sum({host(bucket), bucket.size()}));
}

// Once all ranks have this bucket and the sums of the one before: starts to gather those sums, and
// to add up this bucket. The backward pass goes on meanwhile, except after the last bucket.
void GradReducer::sum_by_peers(const Bucket* bucket) {
    const auto begin = Clock::now();
    peers_->wait();
    communicator_.barrier();
    if (!bucket) waited_ += seconds_since(begin);
    if (const Bucket* before = std::exchange(summed_, bucket))
        peers_->gather(before->begin, before->end);
    if (bucket) peers_->sum(bucket->begin, bucket->end);
}

void GradReducer::wait_for(Bucket& bucket) {
    if (bucket.sums.empty()) return;
    const Span span = this->span(kTraceWaitBucket, bucket);
    const auto begin = Clock::now();
    for (std::future<void>& sum : bucket.sums) sum.get();
    waited_ += seconds_since(begin);
}

bool GradReducer::finish() {
    for (Bucket& bucket : buckets_) bucket.left = 0;
    send_complete();
    if (staged_)
        for (Bucket& bucket : buckets_) send(bucket);
    if (peers_) sum_by_peers(nullptr), sum_by_peers(nullptr);
    // Gradients are computed from factors while the last buckets are still being summed.
    for (const bool factors : {true, false})
        for (Bucket& bucket : buckets_) {
            if (bool(bucket.factors) != factors) continue;
            wait_for(bucket);
            if (factors) {
                const Span span(track_, kTraceFactors, &bucket - buckets_.data(),
                                bucket.factors->flops(), device_);
                bucket.factors->add_gradient();
            } else if (staged_ && !gpus_sum(bucket)) {
                backend_.to_device(host(bucket), params_.grads + bucket.begin, bucket.size());
            }
        }
    return true;
}

bool GradReducer::may_drift() const { return std::ranges::any_of(choices_, &FactorChoice::use); }

std::string GradReducer::traffic() const {
    return traffic_text(params_, choices_, {communicator_.world(), communicator_.around()},
                        bf16_wire_);
}

std::string GradReducer::memory() const {
    size_t floats = 0;
    for (const FactorChoice& layer : choices_)
        if (layer.use)
            floats += size_t(batch_) * (layer.w->shape.row_elems() + size_t(layer.w->shape.N));
    if (params_.copies_bytes() > 0) floats += floats / 2;  // bf16 copies as well
    return floats == 0 ? ""
                       : fmt::format(", {:.0f} MB factors of all ranks", 4e-6 * double(floats));
}

}  // namespace convoy
