// evaluate.h — exact loss and accuracy over a data set, by one rank or by several together.
#pragma once

#include <functional>

#include "data/loader.h"
#include "net/ring/communicator.h"
#include "src/config/config.h"
#include "src/step/input.h"
#include "src/step/micro_batch.h"

namespace convoy {

class Evaluator {
 public:
    // The model must be planned. `stop` is polled once per batch. passes: of a pipeline, or null.
    Evaluator(Model& model, Backend& backend, Communicator& communicator, std::function<int()> stop,
              BatchPasses* passes = nullptr);

    // Evaluates all samples of `loader` (not a training loader) once. Blocks; returns the same sums
    // on all ranks. Throws Error if the counts do not add up to loader.samples(). A signal on any
    // rank ends the evaluation on all ranks at the same batch: then stopped() is that signal, and
    // the sums are partial. watch: called with each batch of this rank and its logits (in a
    // pipeline, on the ranks of the last stage). log: for a progress bar.
    // tta: the logits are means over several views of each image.
    using Watch = std::function<void(const Batch&, Tensor logits)>;
    Sums run(Loader& loader, int64_t step, const Watch& watch = {}, Log* log = nullptr,
             Tta tta = Tta::kOff);
    int stopped() const { return stopped_; }

 private:
    void add_view(MicroBatch& part, float weight, bool is_first);

    Model& model_;
    Backend& backend_;
    Communicator& communicator_;
    std::function<int()> stop_;
    float* sums_;  // in device memory
    Input input_;
    BatchPasses alone_, &passes_;
    BatchCutter cutter_;
    Tensor view_, mean_;  // floats: logits of a view, and of a batch: the mean over its views
    int stopped_ = 0;
};

}  // namespace convoy
