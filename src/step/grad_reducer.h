// grad_reducer.h — `--sync ring`: the gradients are summed over the ranks while the backward pass
// goes on, then every rank updates its weights in the same way.
//
//   w' = update(w, Σ over ranks r of dw_r)       the same bits on every rank
//
//   arena      | param 0 | param 1 | … | param n−1 | statistics | counters |
//   buckets    |     bucket 3    |  2  |     1     |      first of all     |
//
//   compute    forward ─ loss ─ backward: param n−1 … param 0 ───────┐
//   network                 └ counters ─ 1 ─ 2 ─ … ─ last ───────┴ finish() waits for the rest
//
// A bucket is a slice of the arena that is summed over the ring, or the gradient of one linear
// layer that is sent as its factors (linear_factors.h). The backward pass completes params from the
// back to the front. When all params of a bucket are ready, the communicator starts to sum it.
// Every rank sends its buckets in the same order, even a rank without images in this step.
//
// If the network cannot read device memory, a complete bucket is first copied to the host. The
// device is far behind the calls, so finish() waits for each copy in order and sends it. GPUs of
// one host that can read each other's memory sum a bucket there, in place (PeerSum), as soon as all
// of them have it.
//
// Cost: each rank sends 2·(W−1)/W · 4·N bytes per step (N floats, W ranks; half with --wire bf16
// on a network), hidden if the network is faster than the backward pass. Memory: none besides the
// gradients.
#pragma once

#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "src/step/linear_factors.h"
#include "src/step/sync_methods.h"

namespace convoy {

class GradReducer final : public Sync {
 public:
    // bucket_bytes: size at which a bucket is closed.
    GradReducer(Params& params, Backend& backend, Communicator& communicator, const Config& config,
                size_t bucket_bytes, Track* track = nullptr, SpanSink* device = nullptr);
    // Waits for pending sums, because the communicator still writes to the arena.
    ~GradReducer() override;

    void start(std::span<const int64_t> images = {}) override;
    // Called by the backward pass. Sends each bucket that becomes complete; does not block.
    void ready(const Param& param) override;
    bool take_factors(const Param& w, Tensor x, Tensor dy) override;
    // Sends the remaining buckets, even if params were not ready, and waits for all sums. Throws
    // Error; then the gradients are undefined and sums may be pending.
    bool finish() override;

    bool may_drift() const override;  // the ranks compute gradients from factors
    bool could_average() const override { return true; }
    std::string traffic() const override;
    std::string memory() const override;
    std::string take_notice() override { return std::exchange(notice_, {}); }

 private:
    struct Bucket {
        size_t begin, end;                         // floats of the gradient arena
        int params = 0, left = 0;                  // trained params, and params that are not ready
        std::unique_ptr<Factors> factors = {};     // null: the gradient itself is sent
        int64_t download = 0;                      // its copy to the host
        std::vector<std::future<void>> sums = {};  // pending sums
        size_t size() const { return end - begin; }
    };
    void choose_memory();
    bool gpus_sum(const Bucket& bucket) const {
        return peers_ && !bucket.factors && bucket.end <= params_.trained_size;
    }
    float* host(const Bucket& bucket) const { return arena_ + (bucket.begin - staged_begin_); }
    Bucket& bucket_of(const Param& param);
    void send_complete();
    void send(Bucket& bucket);
    void sum_by_peers(const Bucket* bucket);
    Span span(const TraceName& what, const Bucket& bucket) const {
        return {track_, what, &bucket - buckets_.data(), double(bucket.size() * sizeof(float))};
    }
    void wait_for(Bucket& bucket);

    Track* const track_;
    SpanSink* const device_;
    const int64_t batch_;                      // most images of a step over all ranks
    const bool bf16_wire_;                     // for the text about the traffic
    const std::vector<FactorChoice> choices_;  // how each linear layer is sent
    std::vector<Bucket> buckets_;
    size_t next_ = 0;    // bucket to send next
    const bool staged_;  // the network cannot read device memory
    // From the first step on:
    std::unique_ptr<PeerSum> peers_;  // GPUs that sum their gradients in place
    float* arena_ = nullptr;   // memory for the network: the gradients, or a copy on the host
    size_t staged_begin_ = 0;  // the copy's first float
    const Bucket* summed_ = nullptr;  // its sums are not gathered yet
    std::string notice_;
};

}  // namespace convoy
