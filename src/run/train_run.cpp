// train_run.cpp — the loop of a training run: epochs, steps, validations.
#include "src/run/train_run.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "src/base/check.h"
#include "src/base/text.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/weights.h"
#include "src/job/device_choice.h"
#include "src/job/sync_weights.h"
#include "src/run/pictures.h"
#include "src/train/input.h"
#include "src/train/learning_rate.h"

namespace convoy {

TrainRun::TrainRun(JobSetup& setup, size_t bucket_bytes, std::vector<std::string> expectations)
    : setup_(setup), bucket_bytes_(bucket_bytes), expectations_(std::move(expectations)) {
    // A checkpoint between the two parts of a run is of the first one. Other ranks follow in
    // agree().
    const Position at = setup_.resumed ? setup_.resumed->meta.position : Position{};
    head_only_ = at.epoch < config_.freeze_epochs ||
                 (at.epoch == config_.freeze_epochs && at.epoch > 0 && at.consumed == 0);
    build();
    steps_per_epoch_ = loader_->steps();
    if ((config_.early_stop > 0 || config_.target_top1 > 0) && !val_loader_)
        fail("--early-stop and --target-top1 need validation images: give --val or --val-split");
    if (config_.save_every > 0)
        save_steps_ =
            std::max<int64_t>(1, std::llround(config_.save_every * double(steps_per_epoch_)));
    base_lr_ = base_learning_rate(config_, model_->has_batch_norm());
    if (setup_.rank() == 0) folder_ = open_run_folder(config_, 0);
    run_log_ = std::make_unique<RunLog>(log_, folder_, setup_.rank(), config_.log_every,
                                        int(setup_.classes.size()), config_.tensorboard);
    run_log_->print_events(config_.json);
    if (!config_.page.empty()) page_address(config_.page);  // a mistake in it ends the run here
    if (!config_.page.empty()) run_log_->show_on(&page_state_);
}

// What depends on this rank's share of a batch.
void TrainRun::build() {
    backend_ = make_backend(config_);
    if (config_.replicas > 1 && !backend_->host_visible())
        fail(
            "--replicas shares the weights in this machine's memory: it needs --device cpu; on "
            "GPUs start a rank for each");
    if (config_.replicas > 1 && config_.replicas > backend_->threads())
        fail("--replicas ", config_.replicas, " needs a thread for each, and there are ",
             backend_->threads(), ": give fewer, or more by --threads");
    for (int r = 0; config_.replicas > 1 && r < config_.replicas; ++r) {
        Config own = config_;
        own.threads = backend_->threads() / config_.replicas;
        replica_backends_.push_back(make_backend(own));
    }
    ModelOptions of_model = model_options(config_, int(setup_.classes.size()));
    of_model.head_only = head_only_;
    sharing_ = loader_options(config_, setup_.shares.weights, setup_.rank());
    sharing_.parts = setup_.train_parts;
    const int stages = config_.pipeline;
    if (stages > 1) {  // its first stage reads the images
        of_model.stage = stage_of(setup_.cuts, setup_.rank() % stages);
        of_model.draw_all = setup_.rank() == 0 && !setup_.fresh;  // the others take rank 0's
        sharing_.shares.assign(size_t(setup_.world() / stages), 1);
        sharing_.rank = setup_.rank() / stages;
        sharing_.pixels = of_model.stage.first == 0;
    }
    model_ = std::make_unique<Model>(setup_.model_text, of_model, *backend_);
    LoaderOptions validating = sharing_;
    validating.parts = setup_.val_parts;
    const int max_batch =
        int(std::max<int64_t>({Loader::max_share(sharing_), Loader::max_share(validating), 1}));
    model_->expect(max_batch);
    const int bn_group = model_->has_batch_norm() ? config_.bn_group : 0;
    const int pieces = config_.accumulate * config_.replicas;
    if (pieces > 1 && model_->has_batch_norm() && bn_group == 0)
        fail("--", config_.accumulate > 1 ? "accumulate" : "replicas",
             " needs --bn-group above 0: batch norm takes its statistics over groups, which are "
             "not cut");
    const int piece = piece_images(max_batch, pieces, bn_group);
    if (stages == 1)
        activation_bytes_ = model_->plan(std::min(piece, max_batch), config_.replicas == 1);
    open_tracks();
    optimizer_ = std::make_unique<Optimizer>(config_, model_->params(), *backend_);
    if (!train_source_) open_sources();
    loader_ = make_loader(train_source_, true, 3);
    if (val_source_) val_loader_ = make_loader(val_source_, false, 2);
    TrainerOptions options(config_);
    options.reducer.bucket_bytes = bucket_bytes_;
    options.pipeline.cuts = setup_.cuts;
    options.replicas = replica_backends_;
    options.tracer = &setup_.job.tracer;
    options.track = options.reducer.track = track_;
    trainer_ = std::make_unique<Trainer>(options, *backend_, communicator_, *model_, *optimizer_,
                                         [this] { return wish(); });
    evaluator_ = std::make_unique<Evaluator>(
        *model_, *backend_, communicator_, [this] { return wish(); }, sharing_.packed,
        trainer_->pipeline());
    activation_bytes_ += trainer_->replicas_bytes();
    if (stages > 1) activation_bytes_ = trainer_->pipeline()->activation_bytes();
}

void TrainRun::drop() {
    const Clocks now = clocks();
    clocks_before_ = {now.data_wait, now.net_wait, 0};
    trainer_.reset(), evaluator_.reset();
    loader_.reset(), val_loader_.reset();
    optimizer_.reset(), model_.reset(), replica_backends_.clear(), backend_.reset();
}

// The same weights in a model that trains all layers, with a fresh optimizer.
void TrainRun::thaw() {
    const SafeTensors weights = export_weights(*model_, *backend_);
    drop();
    head_only_ = false;
    build();
    import_weights(weights, *model_, *backend_, /*partial=*/false);
    if (setup_.rank() == 0)
        log_.info("all layers train from epoch ", at_.epoch + 1, " on: ", memory_text());
    run_log_->event("thaw", {{"step", at_.step}});
}

void TrainRun::open_sources() {
    room_ = std::make_shared<std::atomic<int64_t>>(int64_t(config_.cache_decoded.bytes));
    const auto keep = [&](std::shared_ptr<const Source> source) {
        if (!source || *room_ <= 0) return source;
        if (source->is_stream()) {
            log_.notice(
                "--cache-decoded keeps nothing of a pipe, which brings other images each time");
            return source;
        }
        decoded_bytes_ += decoded_bytes(*source, model_->input().C);
        return keep_decoded(std::move(source), model_->input().C, room_);
    };
    train_source_ = keep(setup_.data.train);
    val_source_ = keep(setup_.data.val);
}

std::unique_ptr<Loader> TrainRun::make_loader(std::shared_ptr<const Source> source, bool training,
                                              int slots) {
    LoaderOptions options = sharing_;
    options.training = training;
    if (!training) options.parts = setup_.val_parts;
    if (!training) options.tracks.clear();
    return std::make_unique<Loader>(
        std::move(source), training_preprocess(config_, model_->input()), options,
        options.pixels ? lend_slots(*backend_, *model_, slots, options.packed)
                       : std::vector<float*>(size_t(slots), nullptr));
}

Clocks TrainRun::clocks() const {
    return {clocks_before_.data_wait + loader_->waited_seconds(),
            clocks_before_.net_wait + trainer_->seconds_waited_for_network(),
            communicator_.seconds_busy()};
}

int TrainRun::run() {
    try {
        start_weights();
        if (setup_.job.is_newcomer()) go_on();  // into the job, at its place
        for (;;) {
            try {
                if (!agreed_) start_together();
                if (!costs_) begin();
                wait_for_ranks();
                return train();
            } catch (const RingBroken&) {
                go_on();
            }
        }
    } catch (const Left&) {
        return 0;
    } catch (const std::exception& error) {
        communicator_.abort(error.what());
        trace_failure();
        save_after_failure(error);
        run_log_->event("error", {{"step", at_.step}, {"cause", error.what()}});
        throw;
    }
}

void TrainRun::begin() {
    count_steps();
    if (setup_.rank() == 0) print_start();
    serve_page();
    if (!folder_.empty() && trace_steps_.last > 0 && at_.step >= trace_steps_.last)
        log_.notice("--trace ", config_.trace, ": no trace, the run begins after step ", at_.step);
    const int64_t epochs = config_.steps > 0
                               ? (total_steps_ + steps_per_epoch_ - 1) / steps_per_epoch_
                               : config_.epochs;
    run_log_->plan(epochs, steps_per_epoch_, total_steps_, at_.step, clocks());
    run_log_->event("start", public_settings(config_));
    if (TensorBoard* board = run_log_->tensorboard()) {
        board->text("model", "```\n" + model_->table() + "```", at_.step);
        std::string ranks = "| rank | share | address | host |\n| --- | --- | --- | --- |\n";
        for (const Peer& peer : setup_.job.peers())
            ranks += cat("| ", peer.rank, " | ", setup_.shares.weights[size_t(peer.rank)], " | ",
                         peer.address, " | ", peer.host, " |\n");
        board->text("ranks", ranks, at_.step);
    }
    log_job();
    costs_ = std::make_unique<CostMeter>(setup_.job, spent_before_);
    const std::string device = device_identity(config_.device);
    usage_ = std::make_unique<Utilisation>(device.starts_with("GPU-") ? device : "", communicator_,
                                           clocks());
    communicator_.offer(offer_text(setup_, bucket_bytes_));
}

int TrainRun::train() {
    go_to(at_);
    watch_for_stalls();
    if (trace_due_) write_trace();
    while (!over() || epoch_done()) {  // done: a rank was lost before the epoch was closed
        if (head_only_ && at_.epoch >= config_.freeze_epochs) thaw();
        train_epoch();
        if (epoch_done()) {
            keep_weights_equal();
            tell_usage();
            const JobCost cost = costs_->of_job(run_log_->seconds());
            if (logged_epoch_ < at_.epoch) run_log_->epoch(at_, cost);
            logged_epoch_ = at_.epoch;
            show_histograms();
            if (val_loader_ && !stopped_ && config_.schedule != Schedule::kRange) validate();
            go_to({at_.epoch + 1, 0, at_.step});
        }
        if (save_is_due() && !over()) try_to_save(at_, false);
    }
    finish_trace();
    const JobCost cost = costs_->of_job(run_log_->seconds());
    save(at_, false);
    usage_->step() == at_.step ? take_usage() : tell_usage();
    setup_.job.finish();
    return finish(cost);
}

void TrainRun::go_to(const Position& at) {
    if (at.epoch != at_.epoch) epoch_sums_ = {};
    at_ = committed_ = at;
}

// The sums of a step that is done, or of this rank's part of it.
void TrainRun::count(const Sums& sums, bool local, double lr) {
    const int64_t step_in_epoch = (at_.consumed + config_.batch - 1) / config_.batch;
    run_log_->step(at_, step_in_epoch, sums, local, lr, clocks(), trainer_->gradient_norm());
    if (local) return;
    committed_ = at_;
    step_sums_ = sums, step_lr_ = lr;
    epoch_sums_ += sums;  // the same on every rank: all check it
    if (config_.schedule != Schedule::kRange || sums.count == 0) return;
    smooth_loss_ = at_.step == 1 ? sums.mean_loss() : 0.8 * smooth_loss_ + 0.2 * sums.mean_loss();
    least_loss_ = at_.step == 1 ? smooth_loss_ : std::min(least_loss_, smooth_loss_);
    diverges_ = smooth_loss_ > 4 * least_loss_;
}

Batch* TrainRun::next_batch() {
    const Span span(track_, kTraceWaitData, at_.step + 1);
    return loader_->next();
}

void TrainRun::train_epoch() {
    loader_->start(uint32_t(at_.epoch), at_.consumed);
    while (Batch* batch = next_batch()) {
        // By position rather than by steps done, which a change of --batch would shift.
        const bool by_steps = config_.steps > 0;
        const double lr = learning_rate(
            config_, base_lr_,
            by_steps ? at_.step : at_.epoch * steps_per_epoch_ + at_.consumed / config_.batch,
            by_steps ? config_.steps : config_.epochs * steps_per_epoch_, steps_per_epoch_);
        show_images(*batch);
        Sums sums = trainer_->step(*batch, at_, lr, loader_->peek());
        if (const std::string why = trainer_->take_graph_failure(); !why.empty())
            log_.notice(why, "; steps go on op by op");
        at_.consumed += batch->global_wanted;
        ++at_.step;
        loader_->release(batch);
        bool local = trainer_->local();
        const bool gathers = trainer_->gathers() && gathers_now();
        if (gathers) {
            const Sums all = trainer_->gather(at_);
            if (local) sums = all, local = false;
            if (const auto figures = trainer_->sync().measured(); !figures.empty())
                run_log_->event("sync", {{"step", at_.step}, {"figures", figures}});
        }
        if (local) tell_when_it_stops();
        for (const std::string& reason : loader_->take_bad_reasons())
            log_.notice("left out: ", reason);
        count(sums, local, lr);
        if (!config_.page.empty()) {  // nobody waits: told with the sums of the next step
            take_usage();
            if (!local && at_.step >= usage_->next_step())
                usage_->tell(at_.step, communicator_, clocks());
        }
        if (config_.check_every > 0 && at_.step - checked_step_ >= config_.check_every &&
            (gathers == trainer_->gathers() || trainer_->pipeline()) && !drift_)
            keep_weights_equal();
        if (at_.step % config_.log_every == 0) costs_->read();
        const int agreed = trainer_->stop_agreed();
        if (agreed != kNewRing) stopped_ = agreed;
        trace_step(!trainer_->local() || gathers);
        check_bad(epoch_sums_.skipped + int64_t(setup_.data.train->damaged()), loader_->samples(),
                  "images of this epoch");
        if (over()) return;
        if (save_is_due() && !epoch_done())
            costs_->of_job(run_log_->seconds()), try_to_save(at_, false);
        if (agreed == kNewRing) part();
        communicator_.set_progress(at_.step, Phase::kData);
    }
}

// Sums over the ring have the same bits on every rank. What each rank forms from factors has them
// too, unless the machines' kernels add in another order: then weights drift apart by roundings.
void TrainRun::keep_weights_equal() {
    checked_step_ = at_.step;
    Pipeline* const pipeline = trainer_->pipeline();
    Communicator& equals = pipeline ? pipeline->replicas() : communicator_;
    if (equals.world() == 1) return;
    auto found = take_majority(model_->params(), optimizer_->state(), *backend_, equals);
    if (!found) return;
    if (pipeline) {  // from numbers among the replicas of this stage
        const auto number = [&](int& rank) { rank = rank * config_.pipeline + pipeline->stage(); };
        number(found->root);
        std::ranges::for_each(found->ranks, number);
    }
    trainer_->sync().changed();
    drift_ = std::ranges::any_of(factor_choices(), &FactorChoice::use);
    std::vector<std::string> ranks;
    for (const int rank : found->ranks) ranks.push_back(std::to_string(rank));
    log_.notice(
        "after step ", at_.step, " rank ", join_text(ranks, " and "),
        " held other weights than rank ", found->root, "; all have those of rank ", found->root,
        " now. The first tensor that differed was ", found->tensor, ". ",
        drift_
            ? "Processors that add in another order differ by roundings; --factors off keeps all "
              "equal"
            : "Data was damaged in a memory or on its way; a token (--token-file) protects the "
              "way");
    run_log_->event("unequal", {{"step", at_.step},
                                {"ranks", found->ranks},
                                {"root", found->root},
                                {"tensor", found->tensor}});
}

// With --sync-every: after every H steps. Wherever the weights are about to be used.
bool TrainRun::gathers_now() const {
    return (config_.sync_every > 1 && at_.step % config_.sync_every == 0) ||
           at_.step >= total_steps_ || epoch_done() || save_is_due() ||
           (!trainer_->local() && trainer_->stop_agreed() != 0);
}

// Ranks agree on a signal when they sum, so in local steps it waits for the next average.
void TrainRun::tell_when_it_stops() {
    if (told_to_wait_ || !setup_.job.stop()) return;
    told_to_wait_ = true;
    log_.notice("stopping ",
                config_.sync == SyncKind::kAsync
                    ? std::string("at the next checkpoint or end of an epoch")
                    : cat("after the next average: within ", config_.sync_every, " steps of step ",
                          at_.step),
                "; a second signal ends at once, without a checkpoint");
}

void TrainRun::check_bad(int64_t skipped, int64_t samples, const char* what) const {
    if (double(skipped) > config_.max_bad * double(samples))
        fail(skipped, " of ", samples, " ", what, " did not decode, more than --max-bad ",
             config_.max_bad, " allows; `trainer check` names them all");
}

void TrainRun::validate() {
    const Span span(track_, kTraceValidation, at_.step);
    TensorBoard* board = run_log_->tensorboard();
    Quality quality(int(setup_.classes.size()));
    std::vector<float> logits;
    const auto watch = [&](const Batch& batch, Tensor of_batch) {
        logits.resize(of_batch.elems());
        backend_->download(logits.data(), of_batch.data, logits.size() * sizeof(float));
        quality.add(batch, logits);
    };
    Sums sums;
    optimizer_->swap_average();
    try {
        sums = evaluator_->run(*val_loader_, at_.step,
                               config_.tensorboard ? watch : Evaluator::Watch(), &log_);
    } catch (...) {
        optimizer_->swap_average();
        throw;
    }
    optimizer_->swap_average();
    for (const std::string& reason : val_loader_->take_bad_reasons())
        log_.notice("left out of the validation: ", reason);
    if (evaluator_->stopped() == kNewRing) part();
    stopped_ = evaluator_->stopped();
    if (stopped_) return;
    check_bad(sums.skipped + int64_t(setup_.data.val->damaged()), val_loader_->samples(),
              "validation images");
    const bool has_logits = config_.pipeline == 1;
    if (config_.tensorboard && has_logits) quality.gather(communicator_, *val_source_);
    if (board && has_logits) show_quality(*board, quality, setup_.classes, at_.step);
    last_val_ = sums, last_val_at_ = at_;
    stale_ = sums.top1_part() > peak_top1_ ? 0 : stale_ + 1;
    peak_top1_ = std::max(peak_top1_, sums.top1_part());
    const bool is_best = sums.top1_part() > best_top1_;
    if (is_best) best_top1_ = sums.top1_part();
    run_log_->validation(at_, sums, is_best);
    costs_->of_job(run_log_->seconds());  // for the checkpoint
    if (is_best && config_.save_every > 0) try_to_save({at_.epoch + 1, 0, at_.step}, true);
}

// The last lines, when all ranks are done.
int TrainRun::finish(const JobCost& cost) {
    std::string costs = setup_.rank() == 0 ? usage_->text() : "";
    if (const std::string money = cost.text(); !costs.empty() && !money.empty())
        costs += "\n" + money;
    if (stopped_) {
        run_log_->done(at_, cat("signal ", stopped_), cost);
        if (!costs.empty()) log_.info(costs);
        log_.notice("stopped by signal ", stopped_, " after step ", at_.step,
                    setup_.rank() == 0 ? cat("; to continue: trainer --resume ", folder_) : "");
        return 128 + stopped_;
    }
    run_log_->done(at_,
                   has_target()   ? "target reached"
                   : has_enough() ? "stopped early"
                                  : "finished",
                   cost);
    std::string text = cat("done: ", at_.step, " steps");
    if (setup_.rank() == 0) {
        text += fmt::format(" in {}, {:.1f} img/s", clock_text(run_log_->seconds()),
                            run_log_->images_per_second());
        if (last_val_.count > 0)
            text += fmt::format(", validation top1 {:.2f} % (best {:.2f} %)",
                                100 * last_val_.top1_part(), 100 * best_top1_);
        if (has_target())
            text += fmt::format("; --target-top1 {:g} was reached after {}", config_.target_top1,
                                clock_text(run_log_->seconds()));
        else if (diverges_)
            text += "; the loss has grown to four times its least";
        else if (has_enough())
            text += cat("; --early-stop: ", stale_, " validations without a better one");
        if (!costs.empty()) text += "\n" + costs;
        if (config_.schedule != Schedule::kRange)
            text += cat("\nmodel: ", find_model_file(folder_), "   try: trainer predict --from ",
                        folder_, " IMAGE");
    }
    log_.info(text);
    return 0;
}

}  // namespace convoy
