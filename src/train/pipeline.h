// pipeline.h — `--sync pipeline:S:M`: each rank holds one stretch of the layers, a stage; a batch
// goes through them in pieces, so that all stages work at once.
//
//   1f1b, 2 stages, 4 pieces         time ──►
//   stage 0   F0  F1  B0  F2  B1  F3  B2      B3       F: forward of a piece, B: backward
//   stage 1       F0  B0  F1  B1  F2  B2  F3  B3       a stage holds at most S − s + 1 pieces
//                 │    └► gradient of what stage 0 made
//                 └ what stage 0 made
//
//   ranks    replica 0: stage 0 … S−1, replica 1: stage 0 … S−1, …     rank = replica·S + stage
//
// The order is 1f1b: Narayanan et al., "PipeDream" (SOSP 2019), with one update a step, as
// Megatron-LM has it. A stage sends what it makes to its neighbours over direct links
// (net/links.h). The replicas of a stage sum their gradients on a ring of their own. Weights and
// optimizer state of other stages are never touched, so they take no memory on a CPU; rank 0 gets
// them where it saves a checkpoint. See pipeline.md.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "data/loader.h"
#include "net/communicator.h"
#include "src/model/model.h"
#include "src/train/grad_reducer.h"
#include "src/train/optimizer.h"
#include "src/train/pieces.h"

namespace convoy {

struct PipelineOptions {
    PipelineOptions(const Config& config);
    std::vector<size_t> cuts = {};  // first layer of each stage (stages.h)
    int stages, pieces;             // S (1: none), M
    bool recompute, bf16_wire;
    int64_t batch;  // images of a step over all replicas
    int bn_group;
};

// Images of a piece, at most. Pieces are cut between groups of batch norm.
int piece_size(const PipelineOptions& options, int replicas, bool batch_norm);

class Pipeline final : public Sync {
 public:
    // `model`: of this rank's stage, which expects batches as large as its replica's share; passes
    // are made by twins of it. Every rank makes one, once for a communicator. All must outlive it.
    Pipeline(const PipelineOptions& options, const ReducerOptions& reducer, Model& model,
             Optimizer& optimizer, Backend& backend, Communicator& communicator);

    int stage() const { return stage_; }
    Communicator& replicas() { return *group_; }  // those of this stage
    size_t activation_bytes() const { return activation_bytes_; }

    // Begins a pass: what all stages know of a batch, which the first one has read. Blocks.
    const Batch& take(const Batch& batch);
    // This rank's counters, as if they were counted once in the pipeline.
    void keep_own(Counters& counters) const;
    // Forward, loss and backward of all pieces. x: the images (first stage). Adds to the gradients
    // and, on the last stage, to sums (BatchSums). Blocks.
    void train(Tensor x, const Batch& batch, const Pass& pass, float smoothing, float* sums);
    void evaluate(Tensor x, const Batch& batch, float* sums);

    void start(std::span<const int64_t>) override {}
    bool finish() override;
    bool gathers() const override { return true; }
    // Rank 0 gets weights and optimizer state of all stages. Collective.
    void gather(Counters& counters) override;
    // Each rank gets those of its stage from rank 0. Collective.
    void scatter();
    double seconds_waited() const override { return waited_; }  // for other stages, and replicas

 private:
    // What crosses a cut in one direction, by piece.
    struct Crossing {
        std::vector<Tensor> wire = {};      // in the device's memory
        std::vector<std::byte*> host = {};  // where the network reads or writes them
        std::vector<std::future<void>> on_way = {};
    };

    int planned_images() const { return std::min(piece_images_, model_.max_batch()); }
    bool is_last() const { return stage_ + 1 == options_.stages; }
    Crossing make_crossing(Shape image);
    void expect(Crossing& crossing, int rank);
    void send(Crossing& crossing, size_t piece, Tensor what, int rank);
    void receive(Crossing& crossing, size_t piece, Tensor to);
    void wait(std::future<void>& message);
    void read_batch(const Batch& batch);
    void write_batch(const Batch& batch);
    void begin_pass(Tensor x, const Batch& batch, const Pass& pass);
    void forward(size_t piece, Model& model);
    void loss(size_t piece, const Batch& batch, float smoothing, Tensor dlogits, float* sums);
    void backward(size_t piece, const Batch& batch, float smoothing, float* sums);
    void copy_arenas(int stage, int from);

    const PipelineOptions options_;
    Model& model_;
    Optimizer& optimizer_;
    Backend& backend_;
    Communicator& communicator_;
    const int stage_, replica_, replicas_, piece_images_;
    PieceCutter cuts_;
    const Type wire_type_;
    std::unique_ptr<Communicator> group_;  // the replicas of this stage
    std::unique_ptr<GradReducer> reducer_;
    size_t held_;                                 // pieces between forward and backward
    std::vector<std::unique_ptr<Model>> models_;  // as many, or one with CONVOY_RECOMPUTE
    size_t last_forward_ = 0;                     // piece
    Crossing x_, y_, dx_, dy_;                    // of this stage
    size_t activation_bytes_ = 0;
    std::vector<uint64_t> meta_;     // what stages tell each other of a batch
    std::future<void> meta_on_way_;  // to the next stage
    Batch batch_;                    // of a later stage than the first

    // of this pass
    std::span<const Piece> pieces_;
    std::vector<Tensor> x_of_, y_of_;  // of the stage, by piece
    std::vector<Tensor> inputs_;       // of a later stage, by piece
    double waited_ = 0;

    std::shared_ptr<Links> links_;  // last: its thread reads and writes what is above
};

}  // namespace convoy
