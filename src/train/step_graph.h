// step_graph.h — a step of training, from pixels to new weights, recorded once and then replayed.
//
// A step of one rank calls the same ops on the same memory as the step before it. Only the content
// of that memory changes: pixels, labels, sample numbers, weights, the learning rate. So a step is
// recorded (a CUDA graph: kernels/cuda/graph.cu) and replayed as long as the number of images,
// their place in memory and the batch norm groups are the same. Several recordings are kept: the
// input has two places that take turns, and an epoch's last batch is smaller.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/base/check.h"
#include "src/config/config.h"
#include "src/model/layer.h"

namespace convoy {

// Why steps cannot be recorded; "" where they can.
std::string why_no_graph(const Backend& backend, int world);

// Trainer::step shows how it is used: replay(); unless that did the step, its ops and end(); on an
// error in between give_up(). The first step with a pass and input like these is run op by op, the
// second is recorded and replayed, later ones are replayed: their ops must be the same.
class StepGraph {
 public:
    StepGraph(Backend& backend, GraphMode mode) : backend_(backend), mode_(mode) {}

    // True: the step was replayed. False: the ops are to be run, or recorded, up to end().
    bool replay(const Pass& pass, Tensor input);
    // Ends a recording, if this is one, and replays it: the ops have run.
    void end();
    // After an error in between. A failed recording with kAuto: no step is recorded from now on,
    // and the ops are to be run once more. Else throws it.
    void give_up(const Error& error);

    // Why kAuto gave up, once; "" before and after.
    std::string take_failure() { return std::exchange(failure_, {}); }

    static constexpr size_t kKept = 6;

 private:
    struct Known {
        Tensor input;
        std::vector<int> groups;
        std::unique_ptr<Recording> recording;  // null after the first run
    };
    Backend& backend_;
    GraphMode mode_;
    std::string failure_;
    std::list<Known> known_;  // the last one used is the first
    bool recording_ = false;  // the first of known_
};

}  // namespace convoy
