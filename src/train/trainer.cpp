// trainer.cpp — the training step. Read Trainer::step from top to bottom: it follows the data.
#include "src/train/trainer.h"

#include "src/base/check.h"

namespace convoy {

TrainerOptions::TrainerOptions(const Config& config)
    : seed(uint64_t(config.seed)),
      bn_group(config.bn_group),
      label_smoothing(float(config.label_smoothing)),
      sync(config.sync),
      sync_every(config.sync_every),
      average(config),
      servers(config),
      pipeline(config),
      graph(config.graph),
      reducer{kDefaultBucketBytes, config.batch, config.factors} {}

static std::unique_ptr<Sync> make_sync(const TrainerOptions& options, Backend& backend,
                                       Communicator& communicator, Model& model,
                                       Optimizer& optimizer) {
    Params& params = model.params();
    if (options.pipeline.stages > 1)
        return std::make_unique<Pipeline>(options.pipeline, options.reducer, model, optimizer,
                                          backend, communicator);
    if (options.sync != SyncKind::kRing)
        return std::make_unique<ServerSync>(options.servers, options.reducer.bucket_bytes, params,
                                            optimizer, backend, communicator);
    if (options.sync_every > 1 && communicator.world() > 1)
        return std::make_unique<WeightAverage>(options.average, options.reducer, params, optimizer,
                                               backend, communicator);
    return std::make_unique<GradReducer>(params, backend, communicator, options.reducer);
}

Trainer::Trainer(const TrainerOptions& options, Backend& backend, Communicator& communicator,
                 Model& model, Optimizer& optimizer, std::function<int()> stop)
    : options_(options),
      backend_(backend),
      communicator_(communicator),
      model_(model),
      optimizer_(optimizer),
      sync_(make_sync(options, backend, communicator, model, optimizer)),
      pipeline_(dynamic_cast<Pipeline*>(sync_.get())),
      stop_(std::move(stop)),
      input_(backend, model, /*ahead=*/true),
      pieces_(std::max(model.planned(), 1), model.max_batch(),
              model.has_batch_norm() ? options.bn_group : 0),
      graph_(backend,
             why_no_graph(backend, communicator.world()).empty() ? options.graph : GraphMode::kOff),
      track_(options.track),
      device_(options.device) {
    if (!options.replicas.empty())
        replicas_.emplace(model, backend, options.replicas, model.planned());
    if (track_) layer_trace_ = model.trace(*options.tracer, track_);
    // Recorded steps read these vectors, so their memory must not move.
    const size_t most = size_t(model.max_batch());
    labels_.reserve(most), samples_.reserve(most), groups_.reserve(most + 1);
    second_labels_.reserve(most), first_parts_.reserve(most);
}

Sums Trainer::step(const Batch& own, const Position& at, double lr, const Batch* next) {
    communicator_.set_progress(at.step, Phase::kForward);
    const Span span(track_, kTraceStep, at.step + 1, own.n);
    const Batch& batch = pipeline_ ? pipeline_->take(own) : own;
    sync_->begin(batch);
    Params& params = model_.params();
    StepBlock block{{}, optimizer_.next(lr)};
    set_counters(block.counters, batch, stop_());
    if (pipeline_) pipeline_->keep_own(block.counters);
    backend_.upload(params.block(), &block, sizeof block);

    const bool has_images = !pipeline_ || pipeline_->stage() == 0;
    const Tensor input = has_images ? input_.take(batch) : Tensor();
    labels_ = batch.labels, samples_ = batch.samples;
    second_labels_ = batch.second_labels, first_parts_ = batch.first_parts;
    group_bounds(batch.positions, batch.global_wanted, options_.bn_group, groups_);
    const bool traced = at.step + 1 >= options_.first_traced && at.step + 1 <= options_.last_traced;
    layer_trace_.device = traced ? device_ : nullptr;
    pass_ = {true, {options_.seed, uint32_t(at.epoch)}, samples_, groups_, true, layer_trace_};
    std::span<const Piece> pieces;
    if (!pipeline_) pieces = pieces_.cut(batch.positions, batch.global_wanted, pass_);
    // The step is replayed, recorded, or run op by op. If recording fails, the loop runs twice.
    const auto begin = Clock::now();
    bool done = graph_.replay(pass_, input);
    if (done && track_) track_->add(kTraceRecorded, begin, Clock::now());
    while (!done) {
        try {
            params.clear_grads(backend_);
            float* const sums = params.counters() + StepCounters::kLoss;
            if (pipeline_) {
                pipeline_->train(input, batch, pass_, options_.label_smoothing, sums);
            } else {
                train(pieces, input, batch, at.step, sums);
            }

            communicator_.set_progress(at.step, Phase::kReduce);
            Span waits(track_, kTraceWaitSums);
            const bool summed = sync_->finish();
            waits.end();
            communicator_.set_progress(at.step, Phase::kUpdate);
            const Span update(track_, kTraceUpdate, 0, 0, device_);
            if (summed) optimizer_.update();
            graph_.end();
            done = true;
        } catch (const Error& error) {
            graph_.give_up(error);
        }
    }
    if (next && has_images) input_.fetch_ahead(*next);  // after all uploads of this step

    Span waits(track_, kTraceDevice);
    backend_.download(&block, params.block(), sizeof block);  // the only time the host waits
    waits.end();
    if (block.state.first_bad >= 0) fail_at(size_t(block.state.first_bad), at);
    if (block.state.scale > 0) ++optimizer_.steps_done;
    gradient_norm_ = block.state.norm;
    if (local())
        sync_->add(block.counters);
    else
        agree(block.counters);
    return sums_of(block.counters);
}

void Trainer::agree(const Counters& counters) {
    stop_agreed_ = agreed_wish(counters, communicator_.world(), communicator_.min_world() > 0);
    trace_agreed_ = counters[StepCounters::kTrace] > 0;
}

// Forward, loss and backward of each micro-batch. Buckets are sent during the last one.
void Trainer::train(std::span<const Piece> pieces, Tensor input, const Batch& batch, int64_t step,
                    float* sums) {
    GradListener nobody;
    const auto pass = [&](Model& model, Backend& backend, const Piece& piece, float* sums_of_piece,
                          Track* track, SpanSink* device, GradListener* listener) {
        Span forward(track, kTraceForward, piece.number, 0, device);
        const Tensor logits = model.forward(input.images(piece.begin, piece.end), piece.pass);
        forward.end();
        Span loss(track, kTraceLoss, piece.number, 0, device);
        const Tensor dlogits = model.dlogits(piece.images());
        backend.softmax_cross_entropy(logits, piece.of(labels_), options_.label_smoothing, dlogits,
                                      sums_of_piece,
                                      {piece.of(second_labels_), piece.of(first_parts_)});
        loss.end();

        if (!replicas_) communicator_.set_progress(step, Phase::kBackward);
        const Span backward(track, kTraceBackward, piece.number, 0, device);
        if (listener == sync_.get()) sync_->start(batch.wanted_by);
        model.backward(dlogits, piece.pass, *listener);
    };
    if (replicas_) {
        const Span replicas(track_, kTraceReplicas);
        replicas_->train(pieces, [&](Model& model, Backend& backend, const Piece& piece,
                                     GradListener& keeper, float* own) {
            pass(model, backend, piece, own, nullptr, nullptr, &keeper);
        });
    }
    if (replicas_ || pieces.empty()) return sync_->start(batch.wanted_by);
    for (const Piece& piece : pieces)
        pass(model_, backend_, piece, sums, track_, device_,
             &piece == &pieces.back() ? sync_.get() : &nobody);
}

Sums Trainer::gather(const Position& at) {
    ENSURE(gathers(), "this way to synchronise never gathers");
    communicator_.set_progress(at.step, Phase::kAverage);
    const Span span(track_, kTraceAverage, at.step);
    Counters counters = {};
    sync_->gather(counters);
    if (local()) agree(counters);
    return sums_of(counters);
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

}  // namespace convoy
