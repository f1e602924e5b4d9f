#include "src/train/evaluate.h"

#include "src/base/check.h"
#include "src/base/terminal.h"

namespace convoy {

Evaluator::Evaluator(Model& model, Backend& backend, Communicator& communicator,
                     std::function<int()> stop, Pipeline* pipeline)
    : model_(model),
      backend_(backend),
      communicator_(communicator),
      stop_(std::move(stop)),
      sums_(backend.alloc(StepCounters::kSize)),
      input_(backend, model),
      pieces_(std::max(model.planned(), 1), model.max_batch(), 0),
      pipeline_(pipeline) {}

Sums Evaluator::run(Loader& loader, int64_t step, const Watch& watch, Log* log) {
    Sums total;
    stopped_ = 0;
    loader.start(0, 0);
    communicator_.set_progress(step, Phase::kValidation);
    bool refresh = true;
    std::optional<ProgressBar> bar;
    if (log) bar.emplace(*log, "evaluating", uint64_t(loader.samples()));
    while (Batch* own = loader.next()) {
        if (bar) bar->add(uint64_t(own->global_wanted));
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
            const auto pieces = pieces_.cut(batch.positions, batch.global_wanted,
                                            {false, {}, batch.samples, {}, refresh});
            if (!pieces.empty()) refresh = false;
            Tensor all;  // logits of the batch
            for (const Piece& piece : pieces) {
                const Tensor logits =
                    model_.forward(input.images(piece.begin, piece.end), piece.pass);
                backend_.softmax_cross_entropy(logits, piece.of(batch.labels), 0,
                                               {nullptr, logits.shape()},
                                               sums_ + StepCounters::kLoss);
                all = logits;
                if (!watch || pieces.size() == 1) continue;
                if (!logits_)
                    logits_ = backend_.alloc({model_.max_batch(), 1, 1, logits.C}, logits.type);
                all = logits_.first(batch.n);
                backend_.copy(all.images(piece.begin, piece.end), logits);
            }
            if (watch && batch.n > 0) watch(batch, all);
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
