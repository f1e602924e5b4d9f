// micro_batch.h — a batch goes through the layers in micro-batches, with one update: gradient
// accumulation (`--accumulate N`), replicas (replicas.h) and pipelines (pipeline.cpp).
//
//   batch     | micro-batch 0 | micro-batch 1 | … | N−1 |     activations: of one micro-batch
//   step           F0 B0           F1 B1        …  F B        gradients: the backward passes add up
//                                                    └ the ring sums during the last one
//
// Batches are cut between the groups of batch norm, so micro-batches train what the whole batch
// trains, up to the rounding of sums.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "data/loader.h"
#include "src/model/model.h"
#include "src/step/step_counters.h"

namespace convoy {

struct MicroBatch {
    int begin = 0, end = 0;  // images of the batch
    int64_t number = 0;      // among the micro-batches of the batch
    bool is_last = false;
    std::vector<int> groups = {};
    Pass pass = {};
    // Set for each pass: what computes it, and what goes in and comes out.
    Model* model = nullptr;
    Backend* backend = nullptr;
    GradListener* listener = nullptr;
    Tensor x = {}, y = {}, dy = {}, dx = {};

    int images() const { return end - begin; }
    // This micro-batch's part of a list of all images; empty for an empty list.
    template <class T>
    std::span<const T> of(const std::vector<T>& all) const {
        return all.empty() ? std::span(all)
                           : std::span(all).subspan(size_t(begin), size_t(images()));
    }
};

// The most images of a micro-batch if a rank has up to `share` images of a batch and cuts them into
// `parts`. bn_group: 0 without batch norm.
int micro_batch_images(int64_t share, int parts, int bn_group);

// The part that holds image i, if the global batch is cut into as few parts of at most `most`
// images as possible. Their sizes differ by at most one. The cut does not depend on the ranks.
inline int64_t part_of(int64_t i, int64_t batch, int most) {
    return i * ((batch + most - 1) / most) / batch;
}
// bounds = where the batch norm groups of the global batch begin and end among this rank's images.
// joined: so many groups count as one. positions: as in cut(); group: most images; 0: one group.
void group_bounds(std::span<const int32_t> positions, int64_t batch, int group,
                  std::vector<int>& bounds, int joined = 1);

class BatchCutter {
 public:
    // Micro-batches of at most `images` each, of batches of at most max_batch.
    BatchCutter(int images, int max_batch, int bn_group);
    // Cuts this rank's part of a batch of `batch` images. positions: places of the rank's images in
    // the batch; none: no micro-batches. pass: of the whole part; its samples must outlive the
    // result. Micro-batches with the same number keep their address, for recorded steps.
    std::span<MicroBatch> cut(std::span<const int32_t> positions, int64_t batch, const Pass& pass);
    // The largest number of micro-batches if all ranks have equal shares.
    static size_t most(int images, int max_batch);

 private:
    const int images_, bn_group_;
    std::vector<int> bounds_;
    std::vector<MicroBatch> parts_;
};

// What computes the passes of a batch. This class: one model on one device, one micro-batch after
// the other. Derived: replicas (several threads) and Pipeline (several ranks).
class BatchPasses {
 public:
    using Work = std::function<void(MicroBatch&)>;
    virtual ~BatchPasses() = default;
    // The batch that this rank helps to train: its own batch, or the batch of its pipeline's first
    // stage. In the second case, blocks until that batch has arrived.
    virtual const Batch& take(const Batch& own) { return own; }
    // Calls `forward` and then `backward` for each micro-batch; backward may be empty.
    virtual void run(std::span<MicroBatch> parts, const Work& forward, const Work& backward) {
        for (MicroBatch& part : parts) {
            forward(part);
            if (backward) backward(part);
        }
    }
    // If several ranks have the same images, sets counters to 0 that another of these ranks counts.
    virtual void count_once(Counters&) const {}
    virtual int images(const Model& model) const { return std::max(model.planned(), 1); }
    virtual size_t activation_bytes() const { return 0; }  // besides those of the model
};

}  // namespace convoy
