// step_graph.h — a step of training, from pixels to new weights, recorded once and then replayed.
//
// A step of one rank calls the same ops on the same memory as the step before it. What changes is
// what stands there: pixels, labels, sample numbers, weights, the learning rate. So they are
// recorded (a CUDA graph: kernels/cuda/graph.cu) and replayed as long as the number of images,
// where they stand and the groups of batch norm are the same. A few recordings are kept: the input
// has two places that take turns, and a step with an image less should not cost the next full one
// its own.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/config/config.h"
#include "src/model/layer.h"

namespace convoy {

// Why steps cannot be recorded; "" where they can.
std::string why_no_graph(const Backend& backend, int world);

class StepGraph {
 public:
    StepGraph(Backend& backend, GraphMode mode) : backend_(backend), mode_(mode) {}

    // Does what `ops` does: runs it, the second time for as many images and groups at the same
    // place records and replays it, and from then on replays, unless kKept others came in between.
    // Between two such calls nothing may differ that ops reads but the content of memory. A step
    // that cannot be recorded is an Error with kOn; with kAuto it runs op by op, as do all after
    // it.
    void run(const Pass& pass, Tensor input, const std::function<void()>& ops);

    // Why kAuto gave up, once; "" before and after.
    std::string take_failure() { return std::exchange(failure_, {}); }

    static constexpr size_t kKept = 6;

 private:
    struct Known {
        Tensor input;
        std::vector<int> groups;
        std::unique_ptr<Recording> recording;  // null after the first run

        bool is(const Pass& pass, Tensor x) const;
    };
    Backend& backend_;
    GraphMode mode_;
    std::string failure_;
    std::list<Known> known_;  // the last one used is the first
};

}  // namespace convoy
