// step_graph.h — a training step, from pixels to new weights, recorded once and then replayed. With
// one rank, every step calls the same ops on the same memory, whose content changes (pixels,
// labels, weights, …). So a step is recorded (a CUDA graph: kernels/cuda/graph.cu) and replayed
// while the number of images, their address and the batch norm groups are the same. Several
// recordings are kept: the input has two buffers, and the last batch of an epoch is smaller.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/base/check.h"
#include "src/config/config.h"
#include "src/model/layer.h"

namespace convoy {

// Why steps cannot be recorded; "" if they can.
std::string why_no_graph(const Backend& backend, int world);

class StepGraph {
 public:
    StepGraph(Backend& backend, GraphMode mode) : backend_(backend), mode_(mode) {}

    // Runs the ops of a step. For the same pass and input, `ops` must always call the same ops. The
    // first call runs `ops`. The second call records and replays them. Later calls replay the
    // recording. If recording fails with kAuto, this call runs `ops` again, and later calls run
    // `ops` without recording.
    void run(const Pass& pass, Tensor input, const std::function<void()>& ops);

    // The reason why kAuto stopped recording, returned once; else "".
    std::string take_failure() { return std::exchange(failure_, {}); }

    static constexpr size_t kKept = 6;

 private:
    bool replay(const Pass& pass, Tensor input);
    void end();
    void give_up(const Error& error);
    struct Known {
        Tensor input;
        std::vector<int> groups;
        std::unique_ptr<Recording> recording;  // null after the first run
    };
    Backend& backend_;
    GraphMode mode_;
    std::string failure_;
    std::list<Known> known_;  // most recently used first
    bool recording_ = false;  // known_.front() is being recorded
};

}  // namespace convoy
