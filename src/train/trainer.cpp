// trainer.cpp — the heart of the program. Trainer::step reads in the order in which data flows.
#include "src/train/trainer.h"

#include <signal.h>

#include "src/base/check.h"

namespace convoy {

Trainer::Trainer(const Config& config, Backend& backend, Communicator& communicator, Model& model,
                 Optimizer& optimizer, std::vector<double> shares, std::function<int()> stop)
    : config_(config),
      backend_(backend),
      communicator_(communicator),
      model_(model),
      optimizer_(optimizer),
      shares_(std::move(shares)),
      average_(
          config.sync_every > 1 && communicator.world() > 1
              ? std::make_unique<WeightAverage>(model.params(), optimizer, backend, communicator)
              : nullptr),
      alone_(make_single_rank()),
      reducer_(model.params(), backend, average_ ? *alone_ : communicator,
               reducer_options(config, model.params(), average_ ? 1 : communicator.world())),
      stop_(std::move(stop)),
      input_(backend, model, config.augment_on == AugmentOn::kDevice, /*ahead=*/true),
      graph_(backend,
             why_no_graph(backend, communicator.world()).empty() ? config.graph : GraphMode::kOff) {
    ENSURE(int(shares_.size()) == communicator.world(), shares_.size(), " shares");
    // Recorded steps read them where they were: they may not move.
    const size_t most = size_t(model.max_batch());
    labels_.reserve(most), samples_.reserve(most), groups_.reserve(most + 1);
}

ReducerOptions reducer_options(const Config& config, Params& params, int world) {
    ReducerOptions options;
    if (config.bucket > 0) options.bucket_bytes = size_t(config.bucket * (1 << 20));
    options.batch = config.batch;
    options.factors = choose_factors(params, config.batch, world, config.factors);
    return options;
}

std::optional<Sums> Trainer::step(const Batch& batch, const Position& at, double lr,
                                  const Batch* next) {
    Params& params = model_.params();
    communicator_.set_progress(at.step, Phase::kForward);
    if (average_) average_->begin();
    StepBlock block{{}, optimizer_.next(lr)};
    fill_counters(block.counters, batch, stop_());
    backend_.upload(params.block(), &block, sizeof block);

    group_bounds(batch.positions, config_.bn_group, groups_);
    labels_ = batch.labels, samples_ = batch.samples;
    pass_ = {true, {uint64_t(config_.seed), uint32_t(at.epoch)}, samples_, groups_};
    const Tensor input = input_.take(batch);
    graph_.run(pass_, input, [&] {
        backend_.fill(params.grads, params.updated_size, 0);
        const Tensor logits = model_.forward(input, pass_);
        const Tensor dlogits = model_.dlogits(batch.n);
        backend_.softmax_cross_entropy(logits, labels_, float(config_.label_smoothing), dlogits,
                                       params.counters() + StepCounters::kLoss);

        communicator_.set_progress(at.step, Phase::kBackward);
        reducer_.start(rows_of_ranks(batch.global_wanted));
        if (batch.n > 0) model_.backward(dlogits, pass_, reducer_);

        communicator_.set_progress(at.step, Phase::kReduce);
        reducer_.finish();
        communicator_.set_progress(at.step, Phase::kUpdate);
        optimizer_.update();
    });
    // Behind all that this step itself had to send.
    if (next) input_.fetch_ahead(*next);
    // The one time that the host waits for the device.
    backend_.download(&block, params.block(), sizeof block);
    if (block.state.first_bad >= 0) fail_at(size_t(block.state.first_bad), at);
    if (block.state.scale > 0) ++optimizer_.steps_done;
    if (average_) {
        average_->add(block.counters);
        return std::nullopt;
    }
    stop_agreed_ = read_stop(block.counters);
    return read_counters(block.counters);
}

Sums Trainer::average(const Position& at) {
    ENSURE(average_, "--sync-every is 1");
    communicator_.set_progress(at.step, Phase::kAverage);
    float counters[StepCounters::kSize];
    average_->run(counters);
    stop_agreed_ = read_stop(counters);
    return read_counters(counters);
}

std::span<const int64_t> Trainer::rows_of_ranks(int64_t images) {
    rows_.clear();
    for (int rank = 0; rank < communicator_.world(); ++rank)
        rows_.push_back(share_of(images, shares_, rank).size());
    return rows_;
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

void fill_counters(float (&counters)[StepCounters::kSize], const Batch& batch, int signal) {
    std::fill(std::begin(counters), std::end(counters), 0.0f);
    counters[StepCounters::kCount] = float(batch.n);
    counters[StepCounters::kSkipped] = float(batch.wanted - batch.n);
    counters[StepCounters::kSigint] = signal == SIGINT;
    counters[StepCounters::kSigterm] = signal == SIGTERM;
}

Sums read_counters(const float (&counters)[StepCounters::kSize]) {
    return {counters[StepCounters::kLoss], int64_t(counters[StepCounters::kCorrect]),
            int64_t(counters[StepCounters::kTop5]), int64_t(counters[StepCounters::kCount]),
            int64_t(counters[StepCounters::kSkipped])};
}

int read_stop(const float (&counters)[StepCounters::kSize]) {
    return counters[StepCounters::kSigterm] > 0  ? SIGTERM
           : counters[StepCounters::kSigint] > 0 ? SIGINT
                                                 : 0;
}

void group_bounds(const std::vector<int32_t>& positions, int group, std::vector<int>& bounds) {
    bounds.assign(1, 0);
    for (size_t i = 1; group > 0 && i < positions.size(); ++i)
        if (positions[i] / group != positions[i - 1] / group) bounds.push_back(int(i));
    bounds.push_back(int(positions.size()));
}

}  // namespace convoy
