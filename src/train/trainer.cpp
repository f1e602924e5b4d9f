// trainer.cpp — the heart of the program. Trainer::step reads in the order in which data flows.
#include "src/train/trainer.h"

#include "src/base/check.h"

namespace convoy {

TrainerOptions::TrainerOptions(const Config& config)
    : seed(uint64_t(config.seed)),
      bn_group(config.bn_group),
      label_smoothing(float(config.label_smoothing)),
      sync_every(config.sync_every),
      graph(config.graph),
      packed(config.augment_on == AugmentOn::kDevice),
      reducer{config.bucket.bytes > 0 ? config.bucket.bytes : kDefaultBucketBytes, config.batch,
              config.factors} {}

Trainer::Trainer(const TrainerOptions& options, Backend& backend, Communicator& communicator,
                 Model& model, Optimizer& optimizer, std::vector<double> shares,
                 std::function<int()> stop)
    : options_(options),
      backend_(backend),
      communicator_(communicator),
      model_(model),
      optimizer_(optimizer),
      shares_(std::move(shares)),
      average_(
          options.sync_every > 1 && communicator.world() > 1
              ? std::make_unique<WeightAverage>(model.params(), optimizer, backend, communicator)
              : nullptr),
      alone_(make_single_rank()),
      reducer_(model.params(), backend, local() ? *alone_ : communicator, options.reducer),
      stop_(std::move(stop)),
      input_(backend, model, options.packed, /*ahead=*/true),
      graph_(backend, why_no_graph(backend, communicator.world()).empty() ? options.graph
                                                                          : GraphMode::kOff) {
    ENSURE(int(shares_.size()) == communicator.world(), shares_.size(), " shares");
    // Recorded steps read them at these addresses: they must not move.
    const size_t most = size_t(model.max_batch());
    labels_.reserve(most), samples_.reserve(most), groups_.reserve(most + 1);
}

Sums Trainer::step(const Batch& batch, const Position& at, double lr, const Batch* next) {
    communicator_.set_progress(at.step, Phase::kForward);
    if (average_) average_->begin();
    Params& params = model_.params();
    StepBlock block{{}, optimizer_.next(lr)};
    set_counters(block.counters, batch, stop_());
    backend_.upload(params.block(), &block, sizeof block);

    const Tensor input = input_.take(batch);
    labels_ = batch.labels, samples_ = batch.samples;
    group_bounds(batch.positions, options_.bn_group, groups_);
    pass_ = {true, {options_.seed, uint32_t(at.epoch)}, samples_, groups_};
    // Replayed, or recorded, or run op by op. Where recording fails, the loop runs twice.
    for (bool done = graph_.replay(pass_, input); !done;) {
        try {
            backend_.fill(params.grads, params.updated_size, 0);
            const Tensor logits = model_.forward(input, pass_);
            const Tensor dlogits = model_.dlogits(batch.n);
            backend_.softmax_cross_entropy(logits, labels_, options_.label_smoothing, dlogits,
                                           params.counters() + StepCounters::kLoss);

            communicator_.set_progress(at.step, Phase::kBackward);
            reducer_.start(images_of_ranks(batch.global_wanted));
            if (batch.n > 0) model_.backward(dlogits, pass_, reducer_);

            communicator_.set_progress(at.step, Phase::kReduce);
            reducer_.finish();
            communicator_.set_progress(at.step, Phase::kUpdate);
            optimizer_.update();
            graph_.end();
            done = true;
        } catch (const Error& error) {
            graph_.give_up(error);
        }
    }
    if (next) input_.fetch_ahead(*next);  // after all that this step had to send itself

    backend_.download(&block, params.block(), sizeof block);  // the one time that the host waits
    if (block.state.first_bad >= 0) fail_at(size_t(block.state.first_bad), at);
    if (block.state.scale > 0) ++optimizer_.steps_done;
    if (average_)
        average_->add(block.counters);
    else
        stop_agreed_ = stop_signal(block.counters);
    return sums_of(block.counters);
}

Sums Trainer::average(const Position& at) {
    ENSURE(average_, "--sync-every is 1");
    communicator_.set_progress(at.step, Phase::kAverage);
    Counters counters;
    average_->run(counters);
    stop_agreed_ = stop_signal(counters);
    return sums_of(counters);
}

std::span<const int64_t> Trainer::images_of_ranks(int64_t images) {
    images_of_ranks_.clear();
    for (int rank = 0; rank < communicator_.world(); ++rank)
        images_of_ranks_.push_back(share_of(images, shares_, rank).size());
    return images_of_ranks_;
}

void Trainer::fail_at(size_t bad, const Position& at) {
    std::string where = "in the loss";
    for (Param* param : model_.params().all())
        if (!param->frozen && bad >= param->offset && bad < param->offset + param->shape.elems())
            where = cat("in the ", param->running ? "statistics" : "gradient", " of ", param->name,
                        " (", model_.layer_of(*param), ")");
    fail("step ", at.step, ": NaN or infinity ", where,
         "; the weights are those before the step. A smaller --lr or a longer --warmup usually "
         "helps");
}

void group_bounds(const std::vector<int32_t>& positions, int group, std::vector<int>& bounds) {
    bounds.assign(1, 0);
    for (size_t i = 1; group > 0 && i < positions.size(); ++i)
        if (positions[i] / group != positions[i - 1] / group) bounds.push_back(int(i));
    bounds.push_back(int(positions.size()));
}

}  // namespace convoy
