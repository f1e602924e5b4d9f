// evaluate.cpp — see evaluate.h.
#include "src/train/evaluate.h"

#include "src/base/check.h"
#include "src/base/terminal.h"

namespace convoy {

Evaluator::Evaluator(Model& model, Backend& backend, Communicator& communicator,
                     std::function<int()> stop, BatchPasses* passes)
    : model_(model),
      backend_(backend),
      communicator_(communicator),
      stop_(std::move(stop)),
      sums_(backend.alloc(StepCounters::kSize)),
      input_(backend, model),
      passes_(passes ? *passes : alone_),
      cutter_(passes_.images(model), model.max_batch(), 0) {}

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
        const Batch& batch = passes_.take(*own);
        Counters counters;
        set_counters(counters, batch, stop_());
        passes_.count_once(counters);
        backend_.upload(sums_, counters, sizeof counters);
        const Tensor x = batch.x ? input_.take(batch) : Tensor();
        const auto parts = cutter_.cut(batch.positions, batch.global_wanted,
                                       {false, {}, batch.samples, {}, refresh});
        for (MicroBatch& part : parts) {
            part.model = &model_;
            if (x) part.x = x.images(part.begin, part.end);
            refresh = false;
        }
        Tensor all;  // logits of the batch
        const auto forward = [&](MicroBatch& part) {
            all = part.y = part.model->forward(part.x, part.pass);
            if (!part.model->ends()) return;
            backend_.softmax_cross_entropy(part.y, part.of(batch.labels), 0,
                                           {nullptr, part.y.shape()}, sums_ + StepCounters::kLoss);
            if (!watch || parts.size() == 1) return;
            if (!logits_)
                logits_ = backend_.alloc({model_.max_batch(), 1, 1, part.y.C}, part.y.type);
            all = logits_.first(batch.n);
            backend_.copy(all.images(part.begin, part.end), part.y);
        };
        passes_.run(parts, forward, {});
        if (watch && batch.n > 0) watch(batch, all);
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
