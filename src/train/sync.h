// sync.h — what happens to gradients and weights around a step: ways to train one model on several
// ranks.
//
//   ring       GradReducer     gradients are summed, and every rank updates   (grad_reducer.h)
//   averages   WeightAverage   each rank updates alone, for H steps           (weight_average.h)
//   servers    ServerSync      gradients go to servers, weights come back     (server_sync.h)
//   pipeline   Pipeline        each rank has a stretch of the layers          (pipeline.h)
//
//   Trainer::step   begin ─ forward ─ loss ─ start ─ backward: ready, ready, … ─ finish ─ update
#pragma once

#include <map>
#include <span>
#include <string>

#include "src/model/layer.h"
#include "src/train/step_counters.h"

namespace convoy {

class Sync : public GradListener {
 public:
    // Before the forward pass: the weights are those to begin the step with.
    virtual void begin(const Batch&) {}
    // Statistics and counters are complete, no gradient is. images: how many each rank has at most,
    // the same list on every rank; may be empty where nothing travels as factors. Then the backward
    // pass calls ready() and take_factors().
    virtual void start(std::span<const int64_t> images) = 0;
    // Blocks. True: the gradients hold sums, by which the optimizer is to update the weights here.
    // False: servers have done that. Throws the communicator's or the backend's Error.
    virtual bool finish() = 0;
    virtual double seconds_waited() const = 0;  // for the network: time not hidden by compute

    // The sums of a step are this rank's own, until gather().
    virtual bool is_local() const { return false; }
    // The ranks' weights and optimizer state are complete and equal only after gather().
    virtual bool gathers() const { return false; }
    // After a local step, with its counters.
    virtual void add(const Counters&) {}
    // In the same step on every rank; blocks. Where steps are local, counters = the sums of all
    // ranks since the last time.
    virtual void gather(Counters&) {}
    // Undoes what this rank has done since then, where that can be undone.
    virtual void rewind() {}
    // The weights and the optimizer state were replaced; the same on every rank.
    virtual void changed() {}
    // Figures for the log, of all ranks, as of the last gather().
    virtual std::map<std::string, double> measured() const { return {}; }
};

}  // namespace convoy
