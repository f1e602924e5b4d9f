// command_train.cpp — a training run from the first to the last epoch.
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/loader.h"
#include "src/base/check.h"
#include "src/base/text.h"
#include "src/checkpoint.h"
#include "src/commands.h"
#include "src/equalise.h"
#include "src/evaluate.h"
#include "src/preflight.h"
#include "src/run_folder.h"
#include "src/run_log.h"
#include "src/trainer.h"
#include "src/weights.h"

namespace convoy {

namespace fs = std::filesystem;

namespace {

class TrainRun {
 public:
    TrainRun(JobSetup& setup, Preflight preflight, Log& log, Stop stop);
    int run();

 private:
    std::string network_text();
    void print_start();
    void start_weights();
    void equalise();
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
    void save(bool is_best);
    void save_or_go_on(bool is_best);
    void save_after_failure();
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
    std::string folder_;     // the run's, "" until this rank needs one
    std::unique_ptr<Optimizer> optimizer_;
    std::unique_ptr<Trainer> trainer_;
    std::unique_ptr<Evaluator> evaluator_;
    std::unique_ptr<Loader> loader_, val_loader_;
    std::unique_ptr<RunLog> run_log_;
    Position at_;
    double base_lr_ = 0, best_top1_ = -1;
    Sums last_val_, epoch_sums_;
    int64_t steps_per_epoch_ = 0, total_steps_ = 0, save_steps_ = 0, saved_step_ = -1;
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
    evaluator_ = std::make_unique<Evaluator>(model_, *backend_, communicator_, stop_);

    steps_per_epoch_ = loader_->steps();
    save_steps_ =
        config_.save_every > 0
            ? std::max<int64_t>(1, std::llround(config_.save_every * double(steps_per_epoch_)))
            : 0;
    base_lr_ = base_learning_rate(config_, model_.has_batch_norm());
}

std::unique_ptr<Loader> TrainRun::make_loader(std::shared_ptr<const Source> source, bool training,
                                              int slots) {
    Preprocess how;
    how.size = model_.size();
    how.augment = parse_augment(config_.augment);
    how.seed = uint64_t(config_.seed);
    LoaderOptions options = sharing_;
    options.training = training;
    return std::make_unique<Loader>(std::move(source), how, options,
                                    lend_slots(*backend_, model_, slots));
}

std::string TrainRun::network_text() {
    Params& params = model_.params();
    if (config_.sync_every > 1)
        return cat("weights and optimizer state averaged every ", config_.sync_every,
                   " steps; no gradient travels");
    return traffic_text(
        params,
        choose_factors(params, config_.batch, setup_.world(), parse_factor_mode(config_.factors)),
        setup_.world(), config_.wire == "bf16");
}

void TrainRun::print_start() {
    const auto row = [&](const char* name, const std::string& value) {
        log_.info(fmt::format("  {:<10} {}", name, value));
    };
    log_.info("Convoy: training ", config_.model, " on ", setup_.classes.size(), " classes");
    row("data", setup_.data.description);
    row("classes", join_text(setup_.classes));
    row("model", cat(config_.model, ", input ", model_.size(), "x", model_.size(), ", ",
                     count_text(double(model_.params().model_elems())), " parameters, ",
                     fmt::format("{:.2f} GFLOP forward an image", model_.forward_flops() / 1e9)));
    row("device", backend_->description());
    row("memory", fmt::format("{:.0f} MB activations, {:.0f} MB weights, gradients and optimizer",
                              double(activation_bytes_) / 1e6,
                              double(model_.params().weights_size) * 4 *
                                  double(2 + optimizer_->state().size()) / 1e6));
    row("threads", cat(backend_->threads(), " compute, ", sharing_.threads, " decode"));
    row("batch", cat(config_.batch, " images a step over ", setup_.world(),
                     setup_.world() == 1 ? " rank, " : " ranks, ", steps_per_epoch_,
                     " steps an epoch, ", total_steps_, " in all"));
    row("optimizer",
        fmt::format("{}, lr {:g} for the global batch, {} schedule, {:g} epochs of warm-up",
                    config_.optimizer, base_lr_, config_.schedule, config_.warmup));
    row("augment", config_.augment);
    row("seed", cat(config_.seed));
    row("output", folder_);
    std::string table = model_.table();
    while (table.ends_with('\n')) table.pop_back();
    log_.info(table);
    if (setup_.world() > 1) {
        row("network", network_text());
        log_.info("rank  share  address                host");
        for (const Peer& peer : setup_.job.peers)
            log_.info(fmt::format("{:>4}  {:>5g}  {:<21}  {}", peer.rank,
                                  setup_.shares.weights[size_t(peer.rank)], peer.address,
                                  peer.host));
        for (const std::string& line : preflight_.report) log_.info(line);
    }
    for (int rank = 0; rank + 1 < setup_.world() && config_.bn_group > 0; ++rank) {
        const int64_t cut = share_of(config_.batch, setup_.shares.weights, rank).end;
        if (model_.has_batch_norm() && cut % config_.bn_group != 0)
            log_.info("batch norm: the cut between rank ", rank, " and ", rank + 1, " at image ",
                      cut, " splits a group of ", config_.bn_group,
                      "; its statistics are taken over two smaller ones");
    }
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
    if (setup_.world() > 1) equalise();
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
void TrainRun::equalise() {
    using nlohmann::json;
    const json mine = {at_.epoch, at_.consumed, at_.step, optimizer_->steps_done, best_top1_};
    const json rank0 = json::parse(share_from_rank0(communicator_, mine.dump()));
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
        if (setup_.rank() == 0) folder_ = open_run_folder(config_, 0);
        run_log_ = std::make_unique<RunLog>(
            log_, folder_, setup_.rank(), setup_.rank() == 0 && !config_.quiet, config_.log_every);
        start_weights();
        count_steps();
        if (setup_.rank() == 0) print_start();
        run_log_->event("start", job_settings(config_));
        return train();
    } catch (const std::exception& error) {
        communicator_.abort(error.what());
        save_after_failure();
        if (run_log_) run_log_->event("error", {{"step", at_.step}, {"cause", error.what()}});
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
        if (save_steps_ > 0 && at_.step % save_steps_ == 0 && !over()) save_or_go_on(false);
    }
    if (saved_step_ != at_.step) save(false);
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
        communicator_.set_progress(at_.step, "step");
        std::optional<Sums> done = trainer_->step(*batch, at_, lr);
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
        if (save_steps_ > 0 && at_.step % save_steps_ == 0 && !epoch_done) save_or_go_on(false);
        communicator_.set_progress(at_.step, "data");
    }
}

// Where ranks train on their own for some steps: after every H of them, and wherever the weights
// are about to be looked at.
bool TrainRun::averages_now() const {
    return at_.step % config_.sync_every == 0 || at_.step >= total_steps_ ||
           at_.consumed >= int64_t(setup_.data.train->size()) ||
           (save_steps_ > 0 && at_.step % save_steps_ == 0);
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
    if (is_best && config_.save_every > 0) {
        const Position within = at_;
        at_ = {at_.epoch + 1, 0, at_.step};  // what the checkpoint says: the epoch is over
        save_or_go_on(true);
        at_ = within;
    }
}

void TrainRun::save(bool is_best) {
    if (saved_step_ == at_.step) return;
    if (setup_.rank() != 0 && folder_.empty()) return;  // only where rank 0 cannot
    saved_step_ = at_.step;
    communicator_.set_progress(at_.step, "checkpoint");
    CheckpointMeta meta{at_, best_top1_, optimizer_->steps_done, setup_.data.train->fingerprint(),
                        job_settings(config_)};
    meta.settings["data"] = config_.data;
    meta.settings["val"] = config_.val;
    const Preprocess defaults;
    ModelCard card{config_.model, setup_.model_text, model_.size(), setup_.classes, {}, {}};
    std::copy_n(defaults.mean, 3, card.mean);
    std::copy_n(defaults.std, 3, card.std);
    const std::string folder =
        save_checkpoint(folder_, meta, card, model_, *optimizer_, *backend_, is_best, config_.keep);
    run_log_->event("checkpoint", {{"step", at_.step}, {"folder", folder}});
}

// A full disk in mid-run costs a checkpoint, not the run; the last one must succeed.
void TrainRun::save_or_go_on(bool is_best) {
    try {
        save(is_best);
    } catch (const Error& error) {
        saved_step_ = -1;
        log_.notice("error: ", error.what(), ". Training goes on");
        run_log_->event("error", {{"step", at_.step}, {"cause", error.what()}});
    }
}

// Weights and optimizer state are those of the last whole step: worth keeping. Rank 0 saves, or
// rank 1 where rank 0 is the one that was lost.
void TrainRun::save_after_failure() {
    if (at_.step == 0 || saved_step_ == at_.step) return;
    const bool in_its_place = setup_.rank() == 1 && communicator_.lost_rank() == 0;
    if (setup_.rank() != 0 && !in_its_place) return;
    try {
        if (folder_.empty()) folder_ = open_run_folder(config_, setup_.rank());
        save(false);
        log_.notice("saved the state after step ", at_.step,
                    config_.sync_every > 1
                        ? ", as of this rank: what the others have trained since "
                          "the last average is lost"
                        : "",
                    "; `trainer --resume ", folder_, "` goes on from there");
    } catch (const std::exception& error) {
        log_.notice("error: ", error.what());  // the first failure is the one that is thrown
    }
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
