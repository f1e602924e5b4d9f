// evaluate.h — exact loss and accuracy over a data set, by one rank or by several together.
#pragma once

#include <functional>

#include "data/loader.h"
#include "src/train/input.h"
#include "src/train/trainer.h"

namespace convoy {

class Evaluator {
 public:
    // Takes a planned model. `stop` is polled once a batch. All must outlive the evaluator.
    // packed: so are the loader's batches.
    Evaluator(Model& model, Backend& backend, Communicator& communicator, std::function<int()> stop,
              bool packed = false);

    // Runs all samples of `loader` (not a training one, shares within the model's plan). Shares are
    // neither padded nor cut: counts are whole numbers, and that they add up to the data set's
    // `samples` is asserted. Blocks; the same sums on all ranks. Ranks go in step, so a signal on
    // any of them ends all at the same batch: then stopped() is that signal, and the sums partial.
    Sums run(Loader& loader, int64_t samples, int64_t step);
    int stopped() const { return stopped_; }

 private:
    Model& model_;
    Backend& backend_;
    Communicator& communicator_;
    std::function<int()> stop_;
    float* sums_;  // device memory
    Input input_;
    int stopped_ = 0;
};

}  // namespace convoy
