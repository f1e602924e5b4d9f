// trainer.h — one step of training: from a batch of pixels to new weights, equal on all ranks.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "net/communicator.h"
#include "src/config/config.h"
#include "src/model/model.h"
#include "src/train/input.h"
#include "src/train/optimizer.h"
#include "src/train/pieces.h"
#include "src/train/pipeline.h"
#include "src/train/replicas.h"
#include "src/train/server_sync.h"
#include "src/train/step_counters.h"
#include "src/train/step_graph.h"
#include "src/train/weight_average.h"

namespace convoy {

struct TrainerOptions {
    TrainerOptions(const Config& config);
    uint64_t seed;
    int bn_group;  // images in a batch norm group; 0: all that a rank has of a batch
    float label_smoothing;
    SyncKind sync;
    int sync_every;
    AverageOptions average;
    ServerOptions servers;
    PipelineOptions pipeline;
    GraphMode graph;
    ReducerOptions reducer;
    // A backend for each of several replicas (replicas.h), which must outlive the trainer; or none.
    std::span<const std::unique_ptr<Backend>> replicas = {};
    Tracer* tracer = nullptr;
    Track* track = nullptr;      // of the thread that trains
    SpanSink* device = nullptr;  // Backend::trace
    // Of the steps whose layers the device writes down, counted from 1; of others it does so of
    // passes: an event takes the host about a microsecond.
    int64_t first_traced = 0, last_traced = -1;
};

class Trainer {
 public:
    // Takes a planned model (with backward pass; of a pipeline's stage: Model::expect). Batches
    // larger than it is planned for go through it in pieces (pieces.h). `stop` is
    // polled once a step; the signal that any rank saw reaches all ranks with the sums of the step.
    // All must outlive the trainer.
    Trainer(const TrainerOptions& options, Backend& backend, Communicator& communicator,
            Model& model, Optimizer& optimizer, std::function<int()> stop);

    // One step over this rank's part of a batch, which may be empty. Blocks until the weights are
    // updated. Returns the sums of all ranks; of this rank alone where steps are local(). Throws
    // Error when a peer is lost or the gradient is not finite: the weights are then those before
    // the step. next: the batch of the next step, or null: it is copied to the device meanwhile.
    Sums step(const Batch& batch, const Position& at, double lr, const Batch* next = nullptr);

    // Sync::is_local, gathers: with --sync-every above 1 each rank trains on its own from one
    // gather() to the next.
    bool local() const { return sync_->is_local(); }
    bool gathers() const { return sync_->gathers(); }
    // In the same step on every rank: weights and optimizer state become equal. Returns, where
    // steps are local, the sums of all ranks since the last time. Blocks. Throws Error when a peer
    // is lost: weights are then this rank's own, or equal.
    Sums gather(const Position& at);
    // Where gather() is not called after a local step: if a fragment's turn has come (--fragments),
    // sends it and takes the last one. Where sums of all ranks come with that: sums = these, and
    // the return value is the place up to which they count.
    std::optional<Position> stream(const Position& at, Sums& sums);
    Sync& sync() { return *sync_; }
    Pipeline* pipeline() { return pipeline_; }  // or null
    size_t replicas_bytes() const { return replicas_ ? replicas_->activation_bytes() : 0; }

    // agreed_wish() of the last sums of all ranks: SIGINT, SIGTERM, kNewRing or 0.
    int stop_agreed() const { return stop_agreed_; }
    bool trace_agreed() const { return trace_agreed_; }  // any rank wanted one then
    // With --clip-norm: of the last step, before it was clipped; of this rank where it is local().
    double gradient_norm() const { return gradient_norm_; }
    // Where steps are written down from now on, or null.
    void record(Track* track, SpanSink* device) {
        track_ = layer_trace_.track = track;
        device_ = device;
    }
    // Why steps are no longer recorded, though --graph auto began so; once, then "".
    std::string take_graph_failure() { return graph_.take_failure(); }
    double seconds_waited_for_network() const { return sync_->seconds_waited(); }

 private:
    void train(std::span<const Piece> pieces, Tensor input, const Batch& batch, int64_t step,
               float* sums);
    void agree(const Counters& counters);
    // `bad`: place in the gradient arena of the first number that is not finite.
    [[noreturn]] void fail_at(size_t bad, const Position& at);

    const TrainerOptions options_;
    Backend& backend_;
    Communicator& communicator_;
    Model& model_;
    Optimizer& optimizer_;
    const std::unique_ptr<Sync> sync_;
    Pipeline* const pipeline_;
    std::function<int()> stop_;
    int stop_agreed_ = 0;
    bool trace_agreed_ = false;
    double gradient_norm_ = 0;
    Input input_;
    PieceCutter pieces_;
    std::optional<Replicas> replicas_;
    StepGraph graph_;
    Track* track_;
    SpanSink* device_;
    LayerTrace layer_trace_;
    // Of the current batch; a recorded step reads them at these addresses.
    Pass pass_;
    std::vector<int32_t> labels_, second_labels_;
    std::vector<float> first_parts_;
    std::vector<uint64_t> samples_;
    std::vector<int> groups_;  // bounds of the batch norm groups
};

}  // namespace convoy
