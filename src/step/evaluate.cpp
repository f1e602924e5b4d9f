#include "src/step/evaluate.h"

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

namespace {

// A view of an image: as it is, mirrored, moved down and right by `shift` pixels, or both. `part`
// is its weight in the mean.
struct View {
    bool flip;
    int shift;
    float part;
};

std::vector<View> views_of(Tta tta, InputSize size) {
    if (tta == Tta::kOff) return {{false, 0, 1}};
    if (tta == Tta::kFlip) return {{false, 0, 0.5f}, {true, 0, 0.5f}};
    const int shift = std::max(std::min(size.H, size.W) / 32, 1);
    std::vector<View> views;
    for (const bool flip : {false, true})
        for (const auto& [move, part] : {std::pair{0, 0.25f}, {shift, 0.125f}, {-shift, 0.125f}})
            views.push_back({flip, move, part});
    return views;
}

// batch.x = `images` as the view shows them. Pixels beyond the edge are mirrored.
void show(const View& view, const std::vector<char>& images, InputSize size, const Batch& batch) {
    const auto [H, W, C] = size;
    const size_t pixel = size_t(C) * batch.elem_bytes();
    char* out = batch.slot();
    const auto reflected = [](int i, int all) {
        return i < 0 ? -i : i < all ? i : std::max(2 * (all - 1) - i, 0);
    };
    for (int row = 0; row < batch.n * H; ++row) {
        const int from = row / H * H + reflected(row % H - view.shift, H);
        for (int w = 0; w < W; ++w, out += pixel) {
            const int seen = reflected(w - view.shift, W);
            const int column = view.flip ? W - 1 - seen : seen;
            std::copy_n(&images[(size_t(from) * size_t(W) + size_t(column)) * pixel], pixel, out);
        }
    }
}

}  // namespace

Sums Evaluator::run(Loader& loader, int64_t step, const Watch& watch, Log* log, Tta tta) {
    const std::vector<View> views = views_of(tta, model_.input());
    std::vector<char> images;
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
        if (views.size() > 1)
            images.assign(batch.slot(), batch.slot() + size_t(batch.n) * model_.input().elems() *
                                                           batch.elem_bytes());
        const auto parts = cutter_.cut(batch.positions, batch.global_wanted,
                                       {false, {}, batch.samples, {}, refresh});
        const View* view = nullptr;
        const auto forward = [&](MicroBatch& part) {
            part.y = part.model->forward(part.x, part.pass);
            if (!part.model->ends()) return;
            add_view(part, view->part, /*is_first=*/view == &views.front());
            if (view != &views.back()) return;
            backend_.softmax_cross_entropy(part.y, part.of(batch.labels), 0,
                                           {nullptr, part.y.shape()}, sums_ + StepCounters::kLoss);
        };
        for (const View& each : views) {
            view = &each;
            if (view != &views.front()) backend_.synchronize();  // the last view is uploaded
            if (views.size() > 1) show(each, images, model_.input(), batch);
            const Tensor x = batch.x ? input_.take(batch) : Tensor();
            for (MicroBatch& part : parts) {
                part.model = &model_;
                if (x) part.x = x.images(part.begin, part.end);
                part.pass.refresh &= view == &views.front();
            }
            passes_.run(parts, forward, {});
        }
        refresh = false;
        if (watch && mean_ && batch.n > 0) watch(batch, mean_.first(batch.n));
        backend_.download(counters, sums_, sizeof counters);
        loader.release(own);
        communicator_.allreduce_sum(counters).get();
        total += sums_of(counters);
        stopped_ = agreed_request(counters, communicator_.world(), communicator_.min_world() > 0);
        if (stopped_) return total;
    }
    ENSURE(total.count + total.skipped == loader.samples(), "evaluated ", total.count,
           " and skipped ", total.skipped, " of ", loader.samples());
    return total;
}

// Adds the logits of a micro-batch to the mean. Then part.y is the mean.
void Evaluator::add_view(MicroBatch& part, float weight, bool is_first) {
    const Shape all{model_.max_batch(), 1, 1, part.y.C};
    if (!mean_)
        mean_ = backend_.alloc(all, Type::kFloat32), view_ = backend_.alloc(all, Type::kFloat32);
    const Tensor view = view_.first(part.images()), mean = mean_.images(part.begin, part.end);
    backend_.copy(view, part.y);
    backend_.axpby(weight, view.floats(), is_first ? 0 : 1, mean.floats(), mean.elems());
    part.y = mean;
}

}  // namespace convoy
