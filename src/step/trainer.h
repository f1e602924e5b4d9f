// trainer.h — a training step: from a batch of pixels to new weights, the same on all ranks.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "net/ring/communicator.h"
#include "src/config/config.h"
#include "src/model/model.h"
#include "src/step/class_bias.h"
#include "src/step/grad_reducer.h"
#include "src/step/input.h"
#include "src/step/micro_batch.h"
#include "src/step/optimizer.h"
#include "src/step/replicas.h"
#include "src/step/step_counters.h"
#include "src/step/step_graph.h"
#include "src/step/sync_methods.h"

namespace convoy {

// The sums of a step, and how far they reach.
struct StepResult {
    Sums sums = {};
    bool of_all = true;  // sums of all ranks; else of this rank alone, since the last meeting
    bool met = true;     // weights and optimizer state are complete and equal on all ranks
};

class Trainer {
 public:
    // The model must be planned with backward pass (a pipeline's stage: Model::expect). `stop` is
    // polled once per step; its signal reaches all ranks. All must outlive the trainer.
    Trainer(const TrainerOptions& options, Backend& backend, Communicator& communicator,
            Model& model, Optimizer& optimizer, std::function<int()> stop);

    // One step over this rank's part of a batch, which may be empty. Blocks. If a peer is lost or
    // the gradient is not finite, throws Error and leaves the weights unchanged. next: the next
    // batch, copied to the device meanwhile; or null.
    StepResult step(const Batch& batch, const Position& at, double lr, const Batch* next = nullptr);
    // Called after each step, with the position after it. All ranks meet (sync_methods.h) if the
    // mode needs it, or if `must`: every rank is about to use the weights. Blocks.
    void meet(StepResult& result, const Position& at, bool must);

    Sync& sync() { return *sync_; }
    size_t activation_bytes() const { return passes_.activation_bytes(); }  // besides the model's

    // agreed_request() of the last sums of all ranks: SIGINT, SIGTERM, kNewRing or 0.
    int stop_agreed() const { return stop_agreed_; }
    // With --clip-norm: the norm of the last step before clipping.
    double gradient_norm() const { return gradient_norm_; }
    // What the log should say about the last step, returned once; else "".
    std::string take_notice() { return graph_.take_failure() + sync_->take_notice(); }
    double seconds_waited_for_network() const { return sync_->seconds_waited(); }

 private:
    std::span<MicroBatch> load(const Batch& batch, const Position& at, double lr);
    void forward(MicroBatch& part);
    void loss(MicroBatch& part);
    void start(const Batch& batch);
    void backward(MicroBatch& part);
    bool finish();
    void update();
    StepResult read_counters(const Position& at);
    void agree(const Counters& counters);
    // bad: index in the gradient arena of the first number that is not finite.
    [[noreturn]] void fail_at(size_t bad, const Position& at);

    const TrainerOptions options_;
    Backend& backend_;
    Communicator& communicator_;
    Model& model_;
    Optimizer& optimizer_;
    const std::unique_ptr<Sync> sync_;
    std::optional<Replicas> replicas_;
    BatchPasses& passes_;
    std::function<int()> stop_;
    int stop_agreed_ = 0;
    double gradient_norm_ = 0;
    Counters own_ = {};  // since the last meeting, if only meetings sum counters
    Input input_;
    BatchCutter cutter_;
    const ClassBias bias_;
    StepGraph graph_;
    GradListener nobody_;
    LayerTrace layer_trace_;
    // The current batch; a recorded step reads it at these addresses.
    Pass pass_;
    Tensor x_;
    int64_t step_ = 0;
    Batch batch_;
    std::vector<int> groups_;  // bounds of the batch norm groups
};

}  // namespace convoy
