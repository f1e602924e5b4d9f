// command_train.cpp — a training run from the first to the last epoch.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/loader.h"
#include "src/base/check.h"
#include "src/base/text.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/weights.h"
#include "src/cli/commands.h"
#include "src/job/device_choice.h"
#include "src/job/sync_weights.h"
#include "src/plan/preflight.h"
#include "src/run/run_folder.h"
#include "src/run/run_log.h"
#include "src/run/run_saver.h"
#include "src/run/run_start.h"
#include "src/train/evaluate.h"
#include "src/train/input.h"
#include "src/train/trainer.h"

namespace convoy {

namespace fs = std::filesystem;

namespace {

class TrainRun {
 public:
    TrainRun(JobSetup& setup, Preflight preflight, Log& log, Stop stop);
    int run();

 private:
    void start_weights();
    void sync_weights();
    void take_optimizer_state();
    void stay_equal();
    void count_steps();
    int train();
    void train_epoch();
    bool averages_now() const;
    void tell_when_it_stops();
    Clocks clocks() const {
        return {loader_->waited_seconds(), trainer_->seconds_waited_for_network(),
                communicator_.seconds_busy()};
    }
    void validate();
    void count_bad(const Sums& sums);
    std::unique_ptr<Loader> make_loader(std::shared_ptr<const Source> source, bool training,
                                        int slots);
    bool over() const { return stopped_ || at_.step >= total_steps_; }

    JobSetup& setup_;
    const Preflight preflight_;
    Log& log_;
    Stop stop_;
    const Config& config_ = setup_.config;
    Communicator& communicator_ = setup_.communicator();
    std::unique_ptr<Backend> backend_;
    Model model_;
    LoaderOptions sharing_;  // batch, shares and rank: for every loader
    std::string folder_;     // the run's, on rank 0
    std::unique_ptr<Optimizer> optimizer_;
    std::unique_ptr<Trainer> trainer_;
    std::unique_ptr<Evaluator> evaluator_;
    std::unique_ptr<Loader> loader_, val_loader_;
    std::unique_ptr<RunLog> run_log_;
    std::unique_ptr<RunSaver> saver_;
    Position at_;
    double base_lr_ = 0, best_top1_ = -1;
    Sums last_val_, epoch_sums_;
    int64_t steps_per_epoch_ = 0, total_steps_ = 0;
    size_t activation_bytes_ = 0;
    int stopped_ = 0;
    bool told_ = false;  // that a signal waits for the next average
};

TrainRun::TrainRun(JobSetup& setup, Preflight preflight, Log& log, Stop stop)
    : setup_(setup),
      preflight_(std::move(preflight)),
      log_(log),
      stop_(std::move(stop)),
      backend_(make_backend(config_)),
      model_(setup_.model_text,
             {config_.model, int(setup_.classes.size()), config_.size, uint64_t(config_.seed),
              config_.freeze},
             *backend_) {
    sharing_.batch = config_.batch;
    sharing_.shares = setup_.shares.weights;
    sharing_.rank = setup_.rank();
    sharing_.threads = decode_threads(config_);
    const int max_batch = int(std::max<int64_t>(Loader::max_share(sharing_), 1));
    activation_bytes_ = model_.plan(max_batch, /*training=*/true);
    optimizer_ = std::make_unique<Optimizer>(config_, model_.params(), *backend_);
    loader_ = make_loader(setup_.data.train, true, 3);
    if (setup_.data.val) val_loader_ = make_loader(setup_.data.val, false, 2);
    Config with_bucket = config_;
    with_bucket.bucket = double(preflight_.bucket_bytes) / (1 << 20);
    trainer_ = std::make_unique<Trainer>(with_bucket, *backend_, communicator_, model_, *optimizer_,
                                         setup_.shares.weights, stop_);
    evaluator_ = std::make_unique<Evaluator>(model_, *backend_, communicator_, stop_,
                                             augments_on_device(config_));

    steps_per_epoch_ = loader_->steps();
    base_lr_ = base_learning_rate(config_, model_.has_batch_norm());
    if (setup_.rank() == 0) folder_ = open_run_folder(config_, 0);
    run_log_ =
        std::make_unique<RunLog>(log_, folder_, setup_.rank(), setup_.rank() == 0 && !config_.quiet,
                                 config_.log_every, int(setup_.classes.size()));
    saver_ = std::make_unique<RunSaver>(setup_, model_, *optimizer_, *backend_, *run_log_, log_,
                                        folder_, steps_per_epoch_);
}

std::unique_ptr<Loader> TrainRun::make_loader(std::shared_ptr<const Source> source, bool training,
                                              int slots) {
    Preprocess how;
    how.size = model_.size();
    how.augment = parse_augment(config_.augment);
    how.seed = uint64_t(config_.seed);
    LoaderOptions options = sharing_;
    options.training = training;
    options.packed = augments_on_device(config_);
    return std::make_unique<Loader>(std::move(source), how, options,
                                    lend_slots(*backend_, model_, slots, options.packed));
}

void TrainRun::start_weights() {
    if (setup_.resumed) {
        const CheckpointMeta& meta = setup_.resumed->meta;
        if (meta.data_fingerprint != setup_.data.train->fingerprint())
            fail("--resume: the training set is not the one of the checkpoint ",
                 setup_.resumed->folder, "; its position in the data would mean nothing");
        restore(*setup_.resumed, model_, *optimizer_, *backend_);
        at_ = meta.position;
        // In a folder of its own a resumed run has a best of its own.
        best_top1_ = fs::exists(fs::path(folder_) / "best") ? meta.best_top1 : -1;
        log_.info("resumed from ", setup_.resumed->folder, ": epoch ", at_.epoch + 1, ", ",
                  at_.consumed, " images into it, step ", at_.step);
        setup_.resumed.reset();
    } else if (!config_.init.empty() && setup_.rank() == 0) {
        const ImportReport report =
            import_weights(read_safetensors(config_.init), model_, *backend_, /*partial=*/true);
        log_.notice("weights from ", config_.init, ": ", report.text());
    }
    if (setup_.world() > 1) sync_weights();
}

// What is left of the epoch at hand, and the epochs after it.
void TrainRun::count_steps() {
    if (config_.steps > 0) {
        total_steps_ = config_.steps;
        return;
    }
    const int64_t after = config_.epochs - at_.epoch - 1;
    total_steps_ =
        after < 0 ? at_.step : at_.step + loader_->steps(at_.consumed) + after * steps_per_epoch_;
}

// Rank 0's weights, optimizer state and position to all. Ranks that start afresh have drawn the
// same weights from the same seed: then nothing needs to travel.
void TrainRun::sync_weights() {
    using nlohmann::json;
    const json mine = {at_.epoch, at_.consumed, at_.step, optimizer_->steps_done, best_top1_};
    const json rank0 = json::parse(broadcast_text(communicator_, mine.dump()));
    at_ = {rank0[0], rank0[1], rank0[2]};
    optimizer_->steps_done = rank0[3];
    best_top1_ = rank0[4];
    Params& params = model_.params();
    if (!equal_on_all_ranks(params.weights, params.weights_size, *backend_, communicator_))
        take_from_rank0(params.weights, params.weights_size, *backend_, communicator_);
    if (at_.step > 0) take_optimizer_state();  // else it is zero everywhere
}

void TrainRun::take_optimizer_state() {
    for (float* state : optimizer_->state())
        take_from_rank0(state, model_.params().trained_size, *backend_, communicator_);
}

// Sums over the ring have the same bits on every rank. What each rank forms from factors has them
// too, unless machines differ so much that their kernels add in another order: then their weights
// drift apart by roundings, and once an epoch rank 0's are taken.
void TrainRun::stay_equal() {
    Params& params = model_.params();
    if (setup_.world() == 1 ||
        equal_on_all_ranks(params.weights, params.weights_size, *backend_, communicator_))
        return;
    log_.notice(
        "the ranks' weights differ by roundings, as their processors add in another order; "
        "rank 0's are taken (--factors off keeps them equal at every step)");
    take_from_rank0(params.weights, params.weights_size, *backend_, communicator_);
    take_optimizer_state();
}

int TrainRun::run() {
    try {
        start_weights();
        count_steps();
        if (setup_.rank() == 0)
            print_start(
                {setup_, model_, *optimizer_, *backend_, activation_bytes_, sharing_.threads,
                 steps_per_epoch_, total_steps_, base_lr_, folder_, preflight_.report},
                log_);
        run_log_->event("start", job_settings(config_));
        return train();
    } catch (const std::exception& error) {
        communicator_.abort(error.what());
        saver_->save_after_failure(at_, best_top1_);
        run_log_->event("error", {{"step", at_.step}, {"cause", error.what()}});
        throw;
    }
}

int TrainRun::train() {
    const int64_t epochs = config_.steps > 0
                               ? (total_steps_ + steps_per_epoch_ - 1) / steps_per_epoch_
                               : config_.epochs;
    run_log_->plan(epochs, steps_per_epoch_, total_steps_, at_.step, clocks());
    while (!over()) {
        train_epoch();
        const bool epoch_done = at_.consumed >= int64_t(setup_.data.train->size());
        if (epoch_done) {
            stay_equal();
            run_log_->epoch(at_);
            if (val_loader_ && !stopped_) validate();
            at_ = {at_.epoch + 1, 0, at_.step};
        }
        if (saver_->due(at_.step) && !over()) saver_->save_or_go_on(at_, best_top1_, false);
    }
    saver_->save(at_, best_top1_, false);
    communicator_.barrier();
    communicator_.leave();
    if (stopped_) {
        run_log_->done(at_, cat("signal ", stopped_));
        log_.notice("stopped by signal ", stopped_, " after step ", at_.step,
                    setup_.rank() == 0 ? cat("; `trainer --resume ", folder_, "` goes on") : "");
        return 128 + stopped_;
    }
    run_log_->done(at_, "finished");
    if (setup_.rank() == 0) {
        std::string text =
            fmt::format("done: {} steps in {}, {:.1f} img/s", at_.step,
                        clock_text(run_log_->seconds()), run_log_->images_per_second());
        if (last_val_.count > 0)
            text += fmt::format(", validation top1 {:.2f} % (best {:.2f} %)",
                                100 * last_val_.top1_part(), 100 * best_top1_);
        log_.info(text);
        log_.info("model: ", find_model_file(folder_), "   try: ./trainer predict --from ", folder_,
                  " IMAGE");
    } else {
        log_.info("done: ", at_.step, " steps");
    }
    return 0;
}

void TrainRun::train_epoch() {
    epoch_sums_ = {};
    loader_->start(uint32_t(at_.epoch), at_.consumed);
    while (Batch* batch = loader_->next()) {
        // By position rather than by steps done, which a change of --batch would shift.
        const bool by_steps = config_.steps > 0;
        const double lr = learning_rate(
            config_, base_lr_,
            by_steps ? at_.step : at_.epoch * steps_per_epoch_ + at_.consumed / config_.batch,
            by_steps ? config_.steps : config_.epochs * steps_per_epoch_, steps_per_epoch_);
        std::optional<Sums> done = trainer_->step(*batch, at_, lr, loader_->peek());
        if (const std::string why = trainer_->take_graph_failure(); !why.empty())
            log_.notice(why, "; steps go on op by op");
        at_.consumed += batch->global_wanted;
        ++at_.step;
        loader_->release(batch);
        if (!done && averages_now()) done = trainer_->average(at_);
        if (!done) tell_when_it_stops();
        const Sums sums = done.value_or(Sums{});
        for (const std::string& reason : loader_->take_bad_reasons())
            log_.notice("left out: ", reason);
        const int64_t step_in_epoch = (at_.consumed + config_.batch - 1) / config_.batch;
        run_log_->step(at_, step_in_epoch, sums, lr, clocks());
        stopped_ = trainer_->stop_agreed();
        count_bad(sums);
        if (over()) return;
        const bool epoch_done = at_.consumed >= int64_t(setup_.data.train->size());
        if (saver_->due(at_.step) && !epoch_done) saver_->save_or_go_on(at_, best_top1_, false);
        communicator_.set_progress(at_.step, Phase::kData);
    }
}

// Where ranks train on their own for some steps: after every H of them, and wherever the weights
// are about to be looked at.
bool TrainRun::averages_now() const {
    return at_.step % config_.sync_every == 0 || at_.step >= total_steps_ ||
           at_.consumed >= int64_t(setup_.data.train->size()) || saver_->due(at_.step);
}

// A signal is agreed on with the sums, so in local steps it has to wait for them.
void TrainRun::tell_when_it_stops() {
    if (told_ || !stop_()) return;
    told_ = true;
    log_.notice("stopping after the next average: within ", config_.sync_every, " steps of step ",
                at_.step, "; a second signal ends at once, saving nothing");
}

// The same count on every rank, since it travels with the gradients.
void TrainRun::count_bad(const Sums& sums) {
    epoch_sums_ += sums;
    const double size = double(setup_.data.train->size());
    if (double(epoch_sums_.skipped) > config_.max_bad * size)
        fail(epoch_sums_.skipped, " of ", size,
             " images did not decode in this epoch, more than "
             "--max-bad ",
             config_.max_bad, " allows; `trainer check ", config_.data, "` names them all");
}

void TrainRun::validate() {
    const Sums sums = evaluator_->run(*val_loader_, int64_t(setup_.data.val->size()), at_.step);
    for (const std::string& reason : val_loader_->take_bad_reasons())
        log_.notice("left out of the validation: ", reason);
    stopped_ = evaluator_->stopped();
    if (stopped_) return;
    if (double(sums.skipped) > config_.max_bad * double(setup_.data.val->size()))
        fail(sums.skipped, " of ", setup_.data.val->size(),
             " validation images did not decode, more than --max-bad ", config_.max_bad, " allows");
    last_val_ = sums;
    const bool is_best = sums.top1_part() > best_top1_;
    if (is_best) best_top1_ = sums.top1_part();
    run_log_->validation(at_, sums, is_best);
    const Position epoch_over = {at_.epoch + 1, 0, at_.step};
    if (is_best && config_.save_every > 0) saver_->save_or_go_on(epoch_over, best_top1_, true);
}

}  // namespace

int command_train(const CommandLine& line, Log& log, const Stop& stop) {
    if (!line.files.empty())
        fail("train takes no word '", line.files[0], "'; images are given with --data DIR");
    log.set_quiet(line.config.quiet);
    JobSetup setup = set_up_job(line, log, stop);
    std::unique_ptr<TrainRun> run;
    try {
        Preflight preflight = run_preflight(setup, log, stop);
        run = std::make_unique<TrainRun>(setup, std::move(preflight), log, stop);
    } catch (const std::exception& error) {
        setup.communicator().abort(error.what());
        throw;
    }
    return run->run();
}

}  // namespace convoy
