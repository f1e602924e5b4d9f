// sync_methods.h — ways to train one model on several ranks: what happens to gradients and weights
// around a step. Each way is one file, which begins with its picture, its formula and its cost.
//
//   --sync ring            GradReducer     gradients are summed, every rank updates
//   --sync average, diloco WeightAverage   each rank updates alone; then weights are averaged
//   --sync server, async   ServerSync      gradients go to servers, weights come back
//   --sync pipeline        Pipeline        each rank has a range of the layers
//
//   step   begin ─ forward ─ loss ─ start ─ backward: ready, ready, … ─ finish ─ update ─ meet
//
// To add a way: derive from Sync, and add its function below and a branch to make_sync
// (trainer.cpp).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "net/ring/communicator.h"
#include "src/config/config.h"
#include "src/step/micro_batch.h"
#include "src/step/optimizer.h"

namespace convoy {

struct TrainerOptions {
    TrainerOptions(const Config& its_config) : config(its_config) {}
    Config config;
    size_t bucket_bytes = kDefaultBucketBytes;
    std::vector<size_t> cuts = {};           // --sync pipeline: the first layer of each stage
    std::vector<int64_t> class_images = {};  // for --balance
    // A backend for each replica (replicas.h), which must outlive the trainer; or none.
    std::span<const std::unique_ptr<Backend>> replicas = {};
    Tracer* tracer = nullptr;
    Track* track = nullptr;      // of the thread that trains
    SpanSink* device = nullptr;  // Backend::trace
    // The device records the times of layers for these steps (counted from 1). For other steps it
    // records only passes, because an event costs the host about a microsecond.
    int64_t first_traced = 0, last_traced = -1;
};

// What a Sync works on. All of it must outlive the Sync.
struct SyncParts {
    const TrainerOptions& options;
    Model& model;
    Optimizer& optimizer;
    Backend& backend;
    Communicator& communicator;
};

class Sync : public GradListener, public BatchPasses {
 public:
    // All three must outlive this.
    Sync(Communicator& communicator, Params& params, Backend& backend)
        : communicator_(communicator), params_(params), backend_(backend) {}

    // ---- a step: these functions in this order. Each blocks while it waits for other ranks, and
    // throws the communicator's Error.
    // Prepares the weights with which the step begins.
    virtual void begin(const Batch&) {}
    // Called when statistics and counters are complete, but no gradient is. images: the most images
    // of each rank, equal on every rank. Then the backward pass calls ready() and take_factors().
    virtual void start(std::span<const int64_t> images) = 0;
    // True: the gradients are sums, and this rank must update its weights. False: servers did it.
    virtual bool finish() = 0;

    // ---- meetings: after one, weights and optimizer state are complete and equal on all ranks
    enum class Meeting { kAlways, kNow, kLater };
    // kAlways: after every step, so there is nothing to do. kNow: the ranks must meet after this
    // step. kLater: a meeting is needed only before the weights are used or saved.
    virtual Meeting meeting(int64_t /*steps_done*/) const { return Meeting::kAlways; }
    // Whether a step sums its counters over all ranks. If not, meet() sums them.
    virtual bool sums_each_step() const { return true; }
    // Called in the same step on every rank. If not sums_each_step(): `counters` holds this rank's
    // counts since the last meeting, and becomes the sums over all ranks.
    virtual void meet(Counters& /*counters*/) {}
    // A rank was lost: undoes what this rank has done since the last meeting, if it can be undone.
    virtual void rewind() {}
    // Called after weights and optimizer state were replaced, by the same values on every rank.
    virtual void changed() {}
    // For ranks that hold different parts of the model: gives each rank its part of rank 0's
    // weights and state, unless they are `fresh`. False: every rank holds the whole model.
    virtual bool scatter(bool /*fresh*/) { return false; }
    // Whether this rank alone has all weights and optimizer state of the last meeting.
    virtual bool holds_all() const { return true; }
    // The ranks that have the same weights and state as this rank after a step; their rank r is
    // rank first + r·stride of the job. Without a meeting (`met`) there may be no such ranks.
    struct Twins {
        Communicator& communicator;
        int first = 0, stride = 1;
    };
    virtual std::optional<Twins> twins(bool met) {
        if (!met) return std::nullopt;
        return Twins{communicator_};
    }
    // Whether weights may drift apart by rounding, although all ranks start from the same numbers.
    virtual bool may_drift() const { return false; }

    // ---- for people and logs
    // For the network, not hidden by compute.
    virtual double seconds_waited() const { return waited_; }
    virtual std::string traffic() const = 0;           // what a rank sends, and how
    virtual std::string memory() const { return {}; }  // what the mode needs: ", 12 MB factors"
    // Whether --sync diloco would send less, because this mode sends in every step.
    virtual bool could_average() const { return false; }
    virtual std::map<std::string, double> measured() const { return {}; }  // at the last meeting
    virtual std::string take_notice() { return {}; }  // what the log should say once, or ""

 protected:
    Communicator& communicator_;
    Params& params_;
    Backend& backend_;
    double waited_ = 0;
};

// Each is in the file of its name.
std::unique_ptr<Sync> make_weight_average(const SyncParts& parts);
std::unique_ptr<Sync> make_server_sync(const SyncParts& parts);
std::unique_ptr<Sync> make_pipeline(const SyncParts& parts);

}  // namespace convoy
