// evaluate.cpp — see evaluate.h.
#include "src/train/evaluate.h"

#include "src/base/check.h"

namespace convoy {

Evaluator::Evaluator(Model& model, Backend& backend, Communicator& communicator,
                     std::function<int()> stop, bool packed)
    : model_(model),
      backend_(backend),
      communicator_(communicator),
      stop_(std::move(stop)),
      sums_(backend.alloc(StepCounters::kSize)),
      input_(backend, model, packed) {}

Sums Evaluator::run(Loader& loader, int64_t step) {
    Sums total;
    stopped_ = 0;
    loader.start(0, 0);
    communicator_.set_progress(step, Phase::kValidation);
    while (Batch* batch = loader.next()) {
        Counters counters;
        set_counters(counters, *batch, stop_());
        backend_.upload(sums_, counters, sizeof counters);
        const Pass pass{false, {}, batch->samples, {}};
        const Tensor logits = model_.forward(input_.take(*batch), pass);
        backend_.softmax_cross_entropy(logits, batch->labels, 0, {nullptr, logits.shape()},
                                       sums_ + StepCounters::kLoss);
        backend_.download(counters, sums_, sizeof counters);
        loader.release(batch);
        communicator_.allreduce_sum(counters).get();
        total += sums_of(counters);
        stopped_ = agreed_wish(counters, communicator_.world(), communicator_.min_world() > 0);
        if (stopped_) return total;
    }
    ENSURE(total.count + total.skipped == loader.samples() || loader.is_stream(), "evaluated ",
           total.count, " and skipped ", total.skipped, " of ", loader.samples());
    return total;
}

}  // namespace convoy
