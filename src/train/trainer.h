// trainer.h — a training step: from a batch of pixels to new weights, the same on all ranks.
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
    int bn_group;  // most images of a batch norm group; 0: the whole part of a rank
    float label_smoothing;
    SyncKind sync;
    int sync_every;
    AverageOptions average;
    ServerOptions servers;
    PipelineOptions pipeline;
    GraphMode graph;
    ReducerOptions reducer;
    // A backend for each replica (replicas.h), which must outlive the trainer; or none.
    std::span<const std::unique_ptr<Backend>> replicas = {};
    Tracer* tracer = nullptr;
    Track* track = nullptr;      // of the thread that trains
    SpanSink* device = nullptr;  // Backend::trace
    // The device records the times of layers for these steps (counted from 1). For other steps it
    // records only passes, because an event costs the host about a microsecond.
    int64_t first_traced = 0, last_traced = -1;
};

class Trainer {
 public:
    // The model must be planned with backward pass (a pipeline's stage: Model::expect). `stop` is
    // polled once per step; its signal reaches all ranks. All must outlive the trainer.
    Trainer(const TrainerOptions& options, Backend& backend, Communicator& communicator,
            Model& model, Optimizer& optimizer, std::function<int()> stop);

    // One step over this rank's part of a batch, which may be empty. Blocks. Returns the sums of
    // all ranks, or of this rank if local(). Throws Error if a peer is lost or the gradient is not
    // finite; then the weights are unchanged. next: copied to the device meanwhile, or null.
    Sums step(const Batch& batch, const Position& at, double lr, const Batch* next = nullptr);

    // With --sync average:H, each rank trains by itself between two calls of gather().
    bool local() const { return sync_->is_local(); }
    bool gathers() const { return sync_->gathers(); }
    // In the same step on every rank: makes weights and optimizer state equal. Returns the sums of
    // all ranks since the last call, if local(). Blocks. Throws Error if a peer is lost.
    Sums gather(const Position& at);
    Sync& sync() { return *sync_; }
    Pipeline* pipeline() { return pipeline_; }  // or null
    size_t replicas_bytes() const { return replicas_ ? replicas_->activation_bytes() : 0; }

    // agreed_wish() of the last sums of all ranks: SIGINT, SIGTERM, kNewRing or 0.
    int stop_agreed() const { return stop_agreed_; }
    bool trace_agreed() const { return trace_agreed_; }  // a rank asked for a trace
    // With --clip-norm: the norm of the last step before clipping; of this rank if local().
    double gradient_norm() const { return gradient_norm_; }
    // Changes the tracks of later steps; null: no trace.
    void record(Track* track, SpanSink* device) {
        track_ = layer_trace_.track = track;
        device_ = device;
    }
    // The reason why CONVOY_GRAPH=auto stopped recording steps, returned once; else "".
    std::string take_graph_failure() { return graph_.take_failure(); }
    double seconds_waited_for_network() const { return sync_->seconds_waited(); }

 private:
    void train(std::span<const Piece> pieces, Tensor input, const Batch& batch, int64_t step,
               float* sums);
    void agree(const Counters& counters);
    // bad: index in the gradient arena of the first number that is not finite.
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
    // The current batch; a recorded step reads it at these addresses.
    Pass pass_;
    std::vector<int32_t> labels_, second_labels_;
    std::vector<float> first_parts_;
    std::vector<uint64_t> samples_;
    std::vector<int> groups_;  // bounds of the batch norm groups
};

}  // namespace convoy
