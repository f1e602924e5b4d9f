// trainer.cpp — the training step. Read Trainer::step from top to bottom: it follows the data.
#include "src/step/trainer.h"

#include "src/base/check.h"

namespace convoy {

StepResult Trainer::step(const Batch& own, const Position& at, double lr, const Batch* next) {
    const Span span(options_.track, kTraceStep, at.step + 1, own.n);
    communicator_.set_progress(step_ = at.step, Phase::kForward);
    const Batch& batch = passes_.take(own);
    sync_->begin(batch);  // the weights are those of this step
    const std::span<MicroBatch> parts = load(batch, at, lr);

    graph_.run(pass_, x_, [&] {  // or replays what was recorded
        model_.params().clear_grads(backend_);
        passes_.run(
            parts,
            [&](MicroBatch& part) {
                forward(part);
                loss(part);
            },
            [&](MicroBatch& part) {
                if (part.is_last) start(batch);
                backward(part);  // sends each bucket of gradients that becomes complete
            });
        if (parts.empty() || replicas_) start(batch);  // gradients of replicas are complete now
        if (finish()) update();                        // the gradients are sums over all ranks
    });
    if (next && next->x) input_.fetch_ahead(*next);  // after all uploads of this step
    return read_counters(at);
}

// ---- the parts of a step ------------------------------------------------------------------------

// Counters, learning rate, images and labels of a step.
std::span<MicroBatch> Trainer::load(const Batch& batch, const Position& at, double lr) {
    StepBlock block{{}, optimizer_.next(lr)};
    set_counters(block.counters, batch, stop_());
    passes_.count_once(block.counters);
    backend_.upload(model_.params().block(), &block, sizeof block);

    x_ = batch.x ? input_.take(batch) : Tensor();  // a later stage of a pipeline reads no images
    batch_ = batch;
    group_bounds(batch.positions, batch.global_wanted, options_.config.bn_group, groups_);
    const bool traced = at.step + 1 >= options_.first_traced && at.step + 1 <= options_.last_traced;
    layer_trace_.device = traced ? options_.device : nullptr;
    pass_ = {true,           {uint64_t(options_.config.seed), uint32_t(at.epoch)},
             batch_.samples, groups_,
             true,           layer_trace_};
    const auto parts = cutter_.cut(batch.positions, batch.global_wanted, pass_);
    for (MicroBatch& part : parts) {
        part.model = &model_, part.backend = &backend_;
        part.listener = part.is_last ? static_cast<GradListener*>(sync_.get()) : &nobody_;
        if (x_) part.x = x_.images(part.begin, part.end);
    }
    return parts;
}

void Trainer::forward(MicroBatch& part) {
    const Span span(part.pass.trace.track, kTraceForward, part.number, 0, options_.device);
    part.y = part.model->forward(part.x, part.pass);
}

// dy = the gradient of the loss with respect to the logits. An earlier stage of a pipeline gets its
// dy from the next stage.
void Trainer::loss(MicroBatch& part) {
    if (!part.model->ends()) return;
    const Span span(part.pass.trace.track, kTraceLoss, part.number, 0, options_.device);
    part.dy = part.model->dlogits(part.images());
    part.backend->softmax_cross_entropy(
        bias_.added(part.y, part.begin, *part.backend), part.of(batch_.labels),
        float(options_.config.label_smoothing), part.dy,
        part.model->params().counters() + StepCounters::kLoss,
        {part.of(batch_.second_labels), part.of(batch_.first_parts)});
}

// Starts before the backward pass, because a rank without images has none.
void Trainer::start(const Batch& batch) {
    communicator_.set_progress(step_, Phase::kBackward);
    sync_->start(batch.wanted_by);
}

void Trainer::backward(MicroBatch& part) {
    const Span span(part.pass.trace.track, kTraceBackward, part.number, 0, options_.device);
    part.dx = part.model->backward(part.dy, part.pass, *part.listener);
}

bool Trainer::finish() {
    communicator_.set_progress(step_, Phase::kReduce);
    const Span span(options_.track, kTraceWaitSums);
    return sync_->finish();
}

void Trainer::update() {
    communicator_.set_progress(step_, Phase::kUpdate);
    const Span span(options_.track, kTraceUpdate, 0, 0, options_.device);
    optimizer_.update();
}

StepResult Trainer::read_counters(const Position& at) {
    StepBlock block;
    Span waits(options_.track, kTraceDevice);
    backend_.download(&block, model_.params().block(), sizeof block);  // the host waits only here
    waits.end();
    if (block.state.first_bad >= 0) fail_at(size_t(block.state.first_bad), at);
    if (block.state.scale > 0) ++optimizer_.steps_done;
    gradient_norm_ = block.state.norm;

    const bool of_all = sync_->sums_each_step();
    if (of_all)
        agree(block.counters);
    else
        for (int i = 0; i < StepCounters::kSize; ++i)  // a request counts once
            own_[i] = block.counters[i] + (i < StepCounters::kSigint ? own_[i] : 0);
    return {sums_of(block.counters), of_all, sync_->meeting(at.step + 1) == Sync::Meeting::kAlways};
}

void Trainer::meet(StepResult& result, const Position& at, bool must) {
    const bool stops = result.of_all && stop_agreed_ != 0;
    const bool is_due = sync_->meeting(at.step) == Sync::Meeting::kNow;
    if (result.met || !(must || stops || is_due)) return;
    communicator_.set_progress(at.step, Phase::kAverage);
    const Span span(options_.track, kTraceAverage, at.step);
    sync_->meet(own_);
    result.met = true;
    if (result.of_all) return;
    agree(own_);
    result = {sums_of(own_)};
    std::fill(std::begin(own_), std::end(own_), 0.0f);
}

void Trainer::agree(const Counters& counters) {
    stop_agreed_ = agreed_request(counters, communicator_.world(), communicator_.min_world() > 0);
}

void Trainer::fail_at(size_t bad, const Position& at) {
    std::string where = "in the loss";
    for (Param* param : model_.params().all())
        if (!param->frozen && bad >= param->offset && bad < param->offset + param->shape.elems())
            where = cat("in the ", param->running ? "statistics" : "gradient", " of ", param->name,
                        " (", model_.layer_of(*param), ")");
    throw JobError(cat("step ", at.step, ": NaN or infinity ", where,
                       "; this step did not change the weights. Use a smaller --lr or a longer "
                       "--warmup"));
}

// From the options to the way to synchronise.
static std::unique_ptr<Sync> make_sync(const SyncParts& parts) {
    const TrainerOptions& options = parts.options;
    const Config& config = options.config;
    if (config.pipeline > 1) return make_pipeline(parts);
    if (config.sync != SyncKind::kRing) return make_server_sync(parts);
    if (config.sync_every > 1 && parts.communicator.world() > 1) return make_weight_average(parts);
    return std::make_unique<GradReducer>(parts.model.params(), parts.backend, parts.communicator,
                                         config, options.bucket_bytes, options.track,
                                         options.device);
}

Trainer::Trainer(const TrainerOptions& options, Backend& backend, Communicator& communicator,
                 Model& model, Optimizer& optimizer, std::function<int()> stop)
    : options_(options),
      backend_(backend),
      communicator_(communicator),
      model_(model),
      optimizer_(optimizer),
      sync_(make_sync({options_, model, optimizer, backend, communicator})),
      passes_(options.replicas.empty()
                  ? static_cast<BatchPasses&>(*sync_)
                  : replicas_.emplace(model, backend, options.replicas, model.planned())),
      stop_(std::move(stop)),
      input_(backend, model, /*ahead=*/true),
      cutter_(sync_->images(model), model.max_batch(),
              model.has_batch_norm() ? options.config.bn_group : 0),
      bias_(options.class_images, options.config.balance, model.max_batch(), backend),
      graph_(backend, why_no_graph(backend, communicator.world()).empty() ? options.config.graph
                                                                          : GraphMode::kOff) {
    if (options.track) layer_trace_ = model.trace(*options.tracer, options.track);
    // Recorded steps read these vectors, so their memory must not move.
    const size_t most = size_t(model.max_batch());
    batch_.labels.reserve(most), batch_.samples.reserve(most), groups_.reserve(most + 1);
    batch_.second_labels.reserve(most), batch_.first_parts.reserve(most);
}

}  // namespace convoy
