// evaluate.cpp — see evaluate.h.
#include "src/train/evaluate.h"

#include "src/base/check.h"

namespace convoy {

Evaluator::Evaluator(Model& model, Backend& backend, Communicator& communicator,
                     std::function<int()> stop, bool packed, Pipeline* pipeline)
    : model_(model),
      backend_(backend),
      communicator_(communicator),
      stop_(std::move(stop)),
      sums_(backend.alloc(StepCounters::kSize)),
      input_(backend, model, packed),
      pipeline_(pipeline) {}

Sums Evaluator::run(Loader& loader, int64_t step, const Watch& watch) {
    Sums total;
    stopped_ = 0;
    loader.start(0, 0);
    communicator_.set_progress(step, Phase::kValidation);
    while (Batch* own = loader.next()) {
        const Batch& batch = pipeline_ ? pipeline_->take(*own) : *own;
        Counters counters;
        set_counters(counters, batch, stop_());
        if (pipeline_) pipeline_->keep_own(counters);
        backend_.upload(sums_, counters, sizeof counters);
        const bool has_images = !pipeline_ || pipeline_->stage() == 0;
        const Tensor input = has_images ? input_.take(batch) : Tensor();
        if (pipeline_) {
            pipeline_->evaluate(input, batch, sums_ + StepCounters::kLoss);
        } else {
            const Tensor logits = model_.forward(input, {false, {}, batch.samples, {}});
            backend_.softmax_cross_entropy(logits, batch.labels, 0, {nullptr, logits.shape()},
                                           sums_ + StepCounters::kLoss);
            if (watch) watch(batch, logits);
        }
        backend_.download(counters, sums_, sizeof counters);
        loader.release(own);
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
