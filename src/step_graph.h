// step_graph.h — forward pass, loss and backward pass of a step, recorded once and then replayed.
//
// A step of one rank calls the same ops on the same memory as the step before it. What changes is
// what stands there: pixels, labels, sample numbers, weights. So they are recorded (a CUDA graph:
// kernels/cuda/graph.cu) and replayed until the number of images, where they stand, the groups of
// batch norm or the epoch (an argument of dropout) is another. The optimizer is not part of it: its
// few launches have arguments that are new each time, and wait for the check that the gradient is
// finite.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "src/layer.h"

namespace convoy {

// Why steps cannot be recorded; "" where they can.
std::string why_no_graph(const Backend& backend, int world);

enum class GraphMode { kAuto, kOn, kOff };
GraphMode parse_graph_mode(const std::string& text);  // --graph auto|on|off

class StepGraph {
 public:
    StepGraph(Backend& backend, GraphMode mode) : backend_(backend), mode_(mode) {}

    // Does what `ops` does: runs it, the second time for an equal pass over the same input records
    // and replays it, and from then on replays. Between two such calls nothing may differ that ops
    // reads but the content of memory. A step that cannot be recorded is an Error with kOn; with
    // kAuto it runs op by op, as do all after it.
    void run(const Pass& pass, Tensor input, const std::function<void()>& ops);

    // Why kAuto gave up, once; "" before and after.
    std::string take_failure() { return std::exchange(failure_, {}); }

 private:
    Backend& backend_;
    GraphMode mode_;
    std::string failure_;
    int64_t times_ = 0;  // this pass was run
    Tensor input_;
    uint32_t epoch_ = 0;
    std::vector<int> groups_;
};

}  // namespace convoy
