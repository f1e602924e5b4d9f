// grad_reducer.h — sums the gradients over the ranks while the backward pass goes on.
//
//   arena      | param 0 | param 1 | … | param n−1 | statistics | counters |
//   buckets    |    bucket 3    |  2  |  1   |      0     |   cut from the back; 0 is
//                                                             several, of 16 KB each
//
//   compute    forward ─ loss ─ backward: param n−1 … param 0 ───────┐
//   network                 └ bucket 0 ─ 1 ─ 2 ─ … ─ last ───────┴ finish() waits for the rest
//
// A bucket is a bucket, a slice of the arena that is summed over the ring; or the params of a
// linear layer that travel as factors (factors.h). The backward pass completes params from the back
// to the front. A bucket whose params are all ready is handed to the communicator; buckets go in
// the same order on every rank, also on a rank with nothing to train in this step.
//
// Where the network cannot read the device's memory, a complete bucket starts its way to the host
// beside the backward pass. The device is far behind the calls, so finish() does the rest: it waits
// for each bucket in order and hands it over, while the device works on those after it. The only
// class that knows both Backend and Communicator, with its helpers Factors and WeightAverage.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <vector>

#include "src/model/layer.h"
#include "src/train/factors.h"

namespace convoy {

// What a reducer is made for.
struct ReducerOptions {
    // Size at which a bucket is closed (buckets.h).
    size_t bucket_bytes = kDefaultBucketBytes;
    int64_t batch = 0;                       // images of a step over all ranks, at most
    std::vector<FactorChoice> factors = {};  // of choose_factors(); may be empty
};

class GradReducer final : public GradListener {
 public:
    // All three must outlive the reducer.
    GradReducer(Params& params, Backend& backend, Communicator& communicator,
                const ReducerOptions& options);

    // A step begins, in which rank r has at most params[r] images (the same list on every rank; of
    // no account where nothing travels as factors): counters and statistics are complete, no param
    // is.
    void start(std::span<const int64_t> params = {});
    // Hands over what has become complete.
    void ready(const Param& param) override;
    bool take_factors(const Param& w, Tensor x, Tensor dy) override;
    // Hands over the rest (params that were never ready count as they are) and waits until every
    // sum has arrived. Throws the communicator's Error; the gradients are then undefined, and
    // weights were not touched.
    void finish();

    double seconds_waited() const { return waited_; }  // in finish(): what was not hidden
    size_t buckets() const { return buckets_.size(); }

 private:
    struct Bucket {
        size_t begin, end;                 // floats of the gradient arena
        int params, left;                  // trained params in it, and those not ready yet
        std::unique_ptr<Factors> factors;  // else a bucket
        int64_t download = 0;              // its way to the host
    };
    void cut(const ReducerOptions& options);
    Bucket& bucket_of(const Param& param);
    void take_complete();
    void send(Bucket& bucket);
    template <class Wait>
    void wait_for(Wait&& wait, std::exception_ptr& first);

    Params& params_;
    Backend& backend_;
    Communicator& communicator_;
    std::vector<Bucket> buckets_;
    size_t next_ = 0;    // bucket to hand over next
    const bool staged_;  // buckets go through memory of the host: arena_ is a copy of the gradients
    float* arena_;       // what the network reads and writes
    std::vector<std::future<void>> sums_;
    double waited_ = 0;
};

}  // namespace convoy
