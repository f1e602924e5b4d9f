// grad_reducer.h — sums the gradients over the ranks while the backward pass goes on.
//
//   arena      | param 0 | param 1 | … | param n−1 | statistics | counters |
//   buckets    |     bucket 3    |  2  |     1     |      first of all     |
//
//   compute    forward ─ loss ─ backward: param n−1 … param 0 ───────┐
//   network                 └ counters ─ 1 ─ 2 ─ … ─ last ───────┴ finish() waits for the rest
//
// A bucket is a slice of the arena that is summed over the ring, or the gradient of one linear
// layer that travels as its factors (factors.h). The backward pass completes params from the back
// to the front. A bucket whose params are all ready is given to the communicator. Buckets go in the
// same order on every rank, also on a rank with nothing to train in this step.
//
// Where the network cannot read the device's memory, a complete bucket is first copied to the host,
// beside the backward pass. The device runs far behind the calls, so finish() sends these buckets:
// it waits for each copy in order, while the device works on those after it.
#pragma once

#include <future>
#include <memory>
#include <vector>

#include "src/train/factors.h"
#include "src/train/sync.h"

namespace convoy {

struct ReducerOptions {
    size_t bucket_bytes = kDefaultBucketBytes;  // size at which a bucket is closed (buckets.h)
    int64_t batch = 0;                          // images of a step over all ranks, at most
    FactorMode factors = FactorMode::kOff;
    // To sleep for an operation of forming gradients from factors, in place of it; 0: they are
    // formed.
    double slept_flop_seconds = 0;
    Track* track = nullptr;
};

class GradReducer final : public Sync {
 public:
    // All three must outlive the reducer.
    GradReducer(Params& params, Backend& backend, Communicator& communicator,
                const ReducerOptions& options);
    // Waits for sums that are under way after an error: the communicator writes into the arena
    // until then.
    ~GradReducer() override;

    void start(std::span<const int64_t> images = {}) override;
    // From the backward pass. Sends each bucket that this completes; does not wait for the network.
    void ready(const Param& param) override;
    bool take_factors(const Param& w, Tensor x, Tensor dy) override;
    // Sends the rest (params that were never ready as they are) and waits until every sum has
    // arrived. Throws the communicator's or the backend's Error; the gradients are then
    // undefined, and sums may be under way.
    bool finish() override;

    void ring_changed() override { cut(); }

    double seconds_waited() const override { return waited_; }  // in finish()

 private:
    struct Bucket {
        size_t begin, end;                         // floats of the gradient arena
        int params = 0, left = 0;                  // trained params in it, and those not ready yet
        std::unique_ptr<Factors> factors = {};     // that are sent; null: the sum itself is
        int64_t download = 0;                      // its copy to the host
        std::vector<std::future<void>> sums = {};  // that are under way
    };
    void cut();
    Bucket& bucket_of(const Param& param);
    void send_complete();
    void send(Bucket& bucket);
    Span span(const TraceName& what, const Bucket& bucket) const {
        return {options_.track, what, &bucket - buckets_.data(),
                double((bucket.end - bucket.begin) * sizeof(float))};
    }
    void wait_for(Bucket& bucket);

    Params& params_;
    Backend& backend_;
    Communicator& communicator_;
    const ReducerOptions options_;
    std::vector<Bucket> buckets_;
    size_t next_ = 0;    // bucket to send next
    const bool staged_;  // the network cannot read the device's memory
    float* arena_;       // that the network reads and writes: the gradients, or a copy on the host
    double waited_ = 0;
};

}  // namespace convoy
