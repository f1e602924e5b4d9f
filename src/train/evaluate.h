// evaluate.h — exact loss and accuracy over a data set, by one rank or by several together.
#pragma once

#include <functional>

#include "data/loader.h"
#include "net/communicator.h"
#include "src/train/input.h"
#include "src/train/pieces.h"
#include "src/train/pipeline.h"
#include "src/train/step_counters.h"

namespace convoy {

class Evaluator {
 public:
    // Takes a planned model; batches larger than that go through it in pieces. `stop` is polled
    // once a batch. pipeline: makes the passes, if there is
    // one. All must outlive the evaluator.
    Evaluator(Model& model, Backend& backend, Communicator& communicator, std::function<int()> stop,
              Pipeline* pipeline = nullptr);

    // Evaluates all samples of `loader`, which must not be a training one; the model must be
    // planned for its batches. Each sample counts once: asserts that the counts add up to
    // loader.samples(), unless they come as a stream, which may end early. Blocks; returns the same
    // sums on all ranks. A signal on any rank ends all at the same batch: then stopped() is that
    // signal, and the sums are partial. watch: sees each batch of this rank with its logits,
    // without a pipeline. log: draws how far it is.
    using Watch = std::function<void(const Batch&, Tensor logits)>;
    Sums run(Loader& loader, int64_t step, const Watch& watch = {}, Log* log = nullptr);
    int stopped() const { return stopped_; }

 private:
    Model& model_;
    Backend& backend_;
    Communicator& communicator_;
    std::function<int()> stop_;
    float* sums_;  // device memory
    Input input_;
    PieceCutter pieces_;
    Tensor logits_;  // of a batch in several pieces, for `watch`
    Pipeline* const pipeline_;
    int stopped_ = 0;
};

}  // namespace convoy
