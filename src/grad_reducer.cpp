// grad_reducer.cpp — see grad_reducer.h.
#include "src/grad_reducer.h"

#include <algorithm>
#include <chrono>

#include "src/base/check.h"

namespace convoy {

GradReducer::GradReducer(Params& params, Backend& backend, Communicator& communicator,
                         size_t bucket_bytes)
    : params_(params), backend_(backend), communicator_(communicator) {
    ENSURE(backend.host_visible() || communicator.world() == 1, backend.name(),
           " keeps its gradients where the network cannot read them");
    std::vector<Param*> rows = params.rows();
    std::erase_if(rows, [](Param* row) { return row->running || row->frozen; });

    // Statistics and tail are ready before the backward pass begins. They hold counts and what is
    // kept for long: in pieces so small that they travel exactly whatever the wire.
    constexpr size_t kPiece = Communicator::kExactBytes / sizeof(float);
    for (size_t end = params.grads_size; end > params.trained_size;) {
        const size_t begin = std::max(params.trained_size, end > kPiece ? end - kPiece : 0);
        buckets_.push_back({begin, end, 0, 0});
        end = begin;
    }
    const size_t pieces = buckets_.size();
    Bucket bucket{params.trained_size, params.trained_size, 0, 0};
    for (auto row = rows.rbegin(); row != rows.rend(); ++row) {
        bucket.begin = (*row)->offset;
        ++bucket.rows;
        const size_t limit = buckets_.size() == pieces ? bucket_bytes / 4 : bucket_bytes;
        if ((bucket.end - bucket.begin) * sizeof(float) >= limit) {
            buckets_.push_back(bucket);
            bucket = {bucket.begin, bucket.begin, 0, 0};
        }
    }
    if (bucket.end > bucket.begin) buckets_.push_back(bucket);
}

void GradReducer::start() {
    next_ = 0;
    sums_.clear();
    for (Bucket& bucket : buckets_) bucket.left = bucket.rows;
    send_complete();
}

void GradReducer::ready(const Param& row) {
    if (row.running || row.frozen) return;
    const auto bucket = std::find_if(buckets_.begin(), buckets_.end(), [&](const Bucket& b) {
        return b.begin <= row.offset && row.offset < b.end;
    });
    ENSURE(bucket != buckets_.end() && bucket->left > 0, row.name, " is ready twice in a step");
    --bucket->left;
    send_complete();
}

void GradReducer::send_complete() {
    for (; next_ < buckets_.size() && buckets_[next_].left == 0; ++next_) {
        if (communicator_.world() == 1) continue;
        backend_.synchronize();
        const Bucket& bucket = buckets_[next_];
        sums_.push_back(
            communicator_.allreduce_sum({params_.grads + bucket.begin, bucket.end - bucket.begin}));
    }
}

void GradReducer::finish() {
    for (Bucket& bucket : buckets_) bucket.left = 0;
    send_complete();
    const auto begin = std::chrono::steady_clock::now();
    // Wait for all before throwing: the communicator writes into the arena until then.
    std::exception_ptr first;
    for (std::future<void>& sum : sums_) try {
            sum.get();
        } catch (...) {
            if (!first) first = std::current_exception();
        }
    waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (first) std::rethrow_exception(first);
}

}  // namespace convoy
