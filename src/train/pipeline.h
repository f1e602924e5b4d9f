// pipeline.h — `--sync pipeline:S:M`: each rank holds a range of the layers, a stage. A batch goes
// through the stages in M micro-batches, so that all stages work at once.
//
//   1f1b, 2 stages, 4 micro-batches     time ──►
//   stage 0   F0  F1  B0  F2  B1  F3  B2      B3       F: forward of a micro-batch, B: backward
//   stage 1       F0  B0  F1  B1  F2  B2  F3  B3       ──► activations of the stage (forward)
//                                                      ◄── their gradient (backward)
//   ranks    replica 0: stage 0 … S−1, replica 1: stage 0 … S−1, …     rank = replica·S + stage
//
//   time of a step    (M + S − 1)/M · T/S    for a model that takes T, if all stages take as long:
//                     the rest is the bubble, with M = 8 and S = 2 a ninth
//   bytes per cut     2 · images · floats at the cut · 4, half with --wire bf16
//   memory            weights, gradients and optimizer state of one stage (on CPUs), and the
//                     activations of up to S − s + 1 micro-batches in stage s; of one micro-batch
//                     with CONVOY_RECOMPUTE=1, which repeats forward passes (Chen et al., 2016)
//
// The order is 1f1b: Narayanan et al., "PipeDream" (SOSP 2019), with one update per step, as in
// Megatron-LM. Neighbours exchange activations over direct links (net/links.h). The replicas of a
// stage sum their gradients on a ring of their own. Rank 0 gets the weights and the optimizer state
// of all stages for a checkpoint. See modes.md.
#pragma once

#include <memory>
#include <vector>

#include "src/train/grad_reducer.h"

namespace convoy {

class Pipeline final : public Sync {
 public:
    // The model is this rank's stage, and expects batches as large as its replica's share. The
    // model must not be planned, because twins of it compute the passes.
    explicit Pipeline(const SyncParts& parts);

    // The first stage reads the batch. Each stage sends labels and sample numbers to the next.
    const Batch& take(const Batch& own) override;
    void run(std::span<MicroBatch> parts, const Work& forward, const Work& backward) override;
    void count_once(Counters& counters) const override;
    int images(const Model&) const override { return images_; }
    size_t activation_bytes() const override { return activation_bytes_; }

    void start(std::span<const int64_t>) override { reducer_->start(); }
    void ready(const Param& param) override { reducer_->ready(param); }
    bool finish() override;

    Meeting meeting(int64_t) const override { return Meeting::kLater; }
    void meet(Counters& counters) override;
    bool scatter(bool fresh) override;
    bool holds_all() const override { return false; }
    std::optional<Twins> twins(bool) override { return Twins{*group_, stage_, stages_}; }

    double seconds_waited() const override { return waited_; }  // for other stages and replicas
    std::string traffic() const override;

 private:
    // What crosses a cut in one direction, by micro-batch.
    struct Crossing {
        std::vector<Tensor> wire = {};      // in the device's memory
        std::vector<std::byte*> host = {};  // the same memory, or a copy that the network can read
        std::vector<std::future<void>> on_way = {};
    };
    bool is_last() const { return stage_ + 1 == stages_; }
    Crossing make_crossing(Shape image);
    void expect(Crossing& crossing, int rank, std::span<const MicroBatch> parts);
    void send(Crossing& crossing, size_t number, Tensor what, int rank);
    void receive(Crossing& crossing, size_t number, Tensor to);
    void wait(std::future<void>& message);
    void forward_one(MicroBatch& part, const Work& forward);
    void backward_one(MicroBatch& part, const Work& backward);
    void copy_stage(int stage, int from);

    const int stages_, stage_, replicas_;
    const int images_;  // most images of a micro-batch
    const Type wire_type_;
    const std::vector<size_t> cuts_;  // the first layer of each stage
    Model& model_;
    Optimizer& optimizer_;
    Backend& backend_;
    std::unique_ptr<Communicator> group_;  // the replicas of this stage
    std::unique_ptr<GradReducer> reducer_;
    size_t held_;                                 // micro-batches between forward and backward
    std::vector<std::unique_ptr<Model>> models_;  // as many
    Crossing x_, y_, dx_, dy_;                    // of this stage
    std::vector<Tensor> inputs_;                  // of a later stage, by micro-batch
    size_t activation_bytes_ = 0;
    std::vector<uint64_t> meta_;     // size, labels and sample numbers of a batch
    std::future<void> meta_on_way_;  // to the next stage
    Batch batch_;                    // of a later stage than the first
    double waited_ = 0;
    std::shared_ptr<Links> links_;  // last: its thread reads and writes the members above
};

}  // namespace convoy
