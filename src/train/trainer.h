// trainer.h — one step of training: from a batch of pixels to new weights, equal on all ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "data/loader.h"
#include "net/communicator.h"
#include "src/config/config.h"
#include "src/model/model.h"
#include "src/train/grad_reducer.h"
#include "src/train/input.h"
#include "src/train/optimizer.h"
#include "src/train/step_graph.h"
#include "src/train/weight_average.h"

namespace convoy {

// What a batch brought, summed over all ranks.
struct Sums {
    double loss = 0;
    int64_t correct = 0, top5 = 0, count = 0, skipped = 0;

    void operator+=(const Sums& other) {
        loss += other.loss, correct += other.correct, top5 += other.top5;
        count += other.count, skipped += other.skipped;
    }
    double mean_loss() const { return count ? loss / double(count) : 0; }
    double top1_part() const { return count ? double(correct) / double(count) : 0; }
    double top5_part() const { return count ? double(top5) / double(count) : 0; }
};

// The counters of the gradient arena (params.h), of which each rank fills its own part.
void fill_counters(float (&counters)[StepCounters::kSize], const Batch& batch, int signal);
Sums read_counters(const float (&counters)[StepCounters::kSize]);
int read_stop(const float (&counters)[StepCounters::kSize]);  // SIGTERM, SIGINT or 0

// Where a run is: two integers of data position, and the steps done.
struct Position {
    int64_t epoch = 0, consumed = 0, step = 0;
};

class Trainer {
 public:
    // Takes a planned model (with backward pass). `shares`: one weight a rank, as the loader's.
    // `stop` is polled once a step; the signal that any rank saw reaches all ranks with the sums of
    // the step. All must outlive the trainer.
    Trainer(const Config& config, Backend& backend, Communicator& communicator, Model& model,
            Optimizer& optimizer, std::vector<double> shares, std::function<int()> stop);

    // One step over this rank's part of a batch, which may be empty. Blocks until the weights are
    // new. Throws Error when a peer is lost or the gradient is not finite: the weights are then
    // those before the step.
    // With --sync-every above 1 a step is local, and has no sums of all ranks to return.
    // next: the batch of the next step, if it is there: it travels to the device meanwhile.
    std::optional<Sums> step(const Batch& batch, const Position& at, double lr,
                             const Batch* next = nullptr);
    // Then from time to time, in the same step on every rank: weights and optimizer state become
    // the mean over the ranks; returns the sums since the last time. Blocks. Throws Error when a
    // peer is lost: the weights are then this rank's own, or the mean.
    Sums average(const Position& at);

    // SIGINT or SIGTERM if any rank was asked to stop, as of the last step: the same on every rank.
    int stop_agreed() const { return stop_agreed_; }
    // Why steps are no longer recorded, though --graph auto began so; once, then "".
    std::string take_graph_failure() { return graph_.take_failure(); }
    double seconds_waited_for_network() const {
        return reducer_.seconds_waited() + (average_ ? average_->seconds() : 0);
    }

 private:
    std::span<const int64_t> rows_of_ranks(int64_t images);
    // `bad`: place in the gradient arena of the first number that is not finite.
    [[noreturn]] void fail_at(size_t bad, const Position& at);

    const Config config_;
    Backend& backend_;
    Communicator& communicator_;
    Model& model_;
    Optimizer& optimizer_;
    const std::vector<double> shares_;
    std::unique_ptr<WeightAverage> average_;  // with --sync-every above 1
    std::unique_ptr<Communicator> alone_;     // what the reducer then sums over
    GradReducer reducer_;
    std::function<int()> stop_;
    int stop_agreed_ = 0;
    Input input_;
    StepGraph graph_;
    // Of the batch at hand, where a recorded step finds them.
    Pass pass_;
    std::vector<int32_t> labels_;
    std::vector<uint64_t> samples_;
    std::vector<int> groups_;    // bounds of batch norm
    std::vector<int64_t> rows_;  // each rank's images of it
};

// How a job's gradients travel: buckets and factors, from --bucket, --factors and --batch.
ReducerOptions reducer_options(const Config& config, Params& params, int world);

// Bounds of the batch norm groups in a rank's part of a batch: images whose places in the global
// slice fall into the same block of `group` share a group; group 0 takes the whole part.
void group_bounds(const std::vector<int32_t>& positions, int group, std::vector<int>& bounds);

}  // namespace convoy
