// train_run.cpp — the loop of a training run: epochs, steps, validations.
#include "src/run/train_run.h"

#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "src/base/check.h"
#include "src/base/text.h"
#include "src/checkpoint/checkpoint.h"
#include "src/job/device_choice.h"
#include "src/train/input.h"
#include "src/train/learning_rate.h"

namespace convoy {

TrainRun::TrainRun(JobSetup& setup, size_t bucket_bytes, std::vector<std::string> expectations)
    : setup_(setup), expectations_(std::move(expectations)), backend_(make_backend(config_)) {
    model_ = std::make_unique<Model>(setup_.model_text,
                                     model_options(config_, int(setup_.classes.size())), *backend_);
    sharing_ = loader_options(config_, setup_.shares.weights, setup_.rank());
    const int max_batch = int(std::max<int64_t>(Loader::max_share(sharing_), 1));
    activation_bytes_ = model_->plan(max_batch, /*training=*/true);
    optimizer_ = std::make_unique<Optimizer>(config_, model_->params(), *backend_);
    loader_ = make_loader(setup_.data.train, true, 3);
    if (setup_.data.val) val_loader_ = make_loader(setup_.data.val, false, 2);
    TrainerOptions options(config_);
    options.reducer.bucket_bytes = bucket_bytes;
    trainer_ = std::make_unique<Trainer>(options, *backend_, communicator_, *model_, *optimizer_,
                                         setup_.shares.weights, setup_.job.stop);
    evaluator_ = std::make_unique<Evaluator>(*model_, *backend_, communicator_, setup_.job.stop,
                                             sharing_.packed);
    steps_per_epoch_ = loader_->steps();
    if (config_.save_every > 0)
        save_steps_ =
            std::max<int64_t>(1, std::llround(config_.save_every * double(steps_per_epoch_)));
    base_lr_ = base_learning_rate(config_, model_->has_batch_norm());
    if (setup_.rank() == 0) folder_ = open_run_folder(config_, 0);
    run_log_ = std::make_unique<RunLog>(log_, folder_, setup_.rank(), config_.log_every,
                                        int(setup_.classes.size()),
                                        !config_.quiet && isatty(STDOUT_FILENO));
}

std::unique_ptr<Loader> TrainRun::make_loader(std::shared_ptr<const Source> source, bool training,
                                              int slots) {
    Preprocess how;
    how.size = model_->size();
    how.augment = config_.augment;
    how.seed = uint64_t(config_.seed);
    LoaderOptions options = sharing_;
    options.training = training;
    return std::make_unique<Loader>(std::move(source), how, options,
                                    lend_slots(*backend_, *model_, slots, options.packed));
}

Clocks TrainRun::clocks() const {
    return {loader_->waited_seconds(), trainer_->seconds_waited_for_network(),
            communicator_.seconds_busy()};
}

int TrainRun::run() {
    try {
        start_weights();
        count_steps();
        if (setup_.rank() == 0) print_start();
        run_log_->event("start", job_settings(config_, kTrain));
        return train();
    } catch (const std::exception& error) {
        communicator_.abort(error.what());
        save_after_failure();
        run_log_->event("error", {{"step", at_.step}, {"cause", error.what()}});
        throw;
    }
}

int TrainRun::train() {
    const int64_t epochs = config_.steps > 0
                               ? (total_steps_ + steps_per_epoch_ - 1) / steps_per_epoch_
                               : config_.epochs;
    run_log_->plan(epochs, steps_per_epoch_, total_steps_, at_.step, clocks());
    costs_ = std::make_unique<CostMeter>(setup_.job);
    while (!over()) {
        train_epoch();
        if (epoch_done()) {
            keep_weights_equal();
            run_log_->epoch(at_, costs_->of_job(run_log_->seconds()));
            if (val_loader_ && !stopped_) validate();
            at_ = {at_.epoch + 1, 0, at_.step};
        }
        if (save_is_due() && !over()) try_to_save(at_, false);
    }
    save(at_, false);
    const JobCost cost = costs_->of_job(run_log_->seconds());
    setup_.job.finish();
    return finish(cost);
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
        Sums sums = trainer_->step(*batch, at_, lr, loader_->peek());
        if (const std::string why = trainer_->take_graph_failure(); !why.empty())
            log_.notice(why, "; steps go on op by op");
        at_.consumed += batch->global_wanted;
        ++at_.step;
        loader_->release(batch);
        bool local = trainer_->local();
        if (local && averages_now()) sums = trainer_->average(at_), local = false;
        if (local) tell_when_it_stops();
        for (const std::string& reason : loader_->take_bad_reasons())
            log_.notice("left out: ", reason);
        const int64_t step_in_epoch = (at_.consumed + config_.batch - 1) / config_.batch;
        run_log_->step(at_, step_in_epoch, sums, local, lr, clocks());
        if (at_.step % config_.log_every == 0) costs_->read();
        stopped_ = trainer_->stop_agreed();
        if (!local) epoch_sums_ += sums;  // the same on every rank: all check it
        check_bad(epoch_sums_.skipped, *setup_.data.train, "images of this epoch");
        if (over()) return;
        if (save_is_due() && !epoch_done()) try_to_save(at_, false);
        communicator_.set_progress(at_.step, Phase::kData);
    }
}

// With --sync-every: after every H steps, and wherever the weights are about to be used.
bool TrainRun::averages_now() const {
    return at_.step % config_.sync_every == 0 || at_.step >= total_steps_ || epoch_done() ||
           save_is_due();
}

// Ranks agree on a signal when they sum, so in local steps it waits for the next average.
void TrainRun::tell_when_it_stops() {
    if (told_to_wait_ || !setup_.job.stop()) return;
    told_to_wait_ = true;
    log_.notice("stopping after the next average: within ", config_.sync_every, " steps of step ",
                at_.step, "; a second signal ends at once, without a checkpoint");
}

void TrainRun::check_bad(int64_t skipped, const Source& source, const char* what) const {
    if (double(skipped) > config_.max_bad * double(source.size()))
        fail(skipped, " of ", source.size(), " ", what, " did not decode, more than --max-bad ",
             config_.max_bad, " allows; `trainer check` names them all");
}

void TrainRun::validate() {
    const Sums sums = evaluator_->run(*val_loader_, int64_t(setup_.data.val->size()), at_.step);
    for (const std::string& reason : val_loader_->take_bad_reasons())
        log_.notice("left out of the validation: ", reason);
    stopped_ = evaluator_->stopped();
    if (stopped_) return;
    check_bad(sums.skipped, *setup_.data.val, "validation images");
    last_val_ = sums;
    const bool is_best = sums.top1_part() > best_top1_;
    if (is_best) best_top1_ = sums.top1_part();
    run_log_->validation(at_, sums, is_best);
    if (is_best && config_.save_every > 0) try_to_save({at_.epoch + 1, 0, at_.step}, true);
}

// The last lines, when all ranks are done.
int TrainRun::finish(const JobCost& cost) {
    const std::string costs = setup_.rank() == 0 ? cost.text() : "";
    if (stopped_) {
        run_log_->done(at_, cat("signal ", stopped_), cost);
        if (!costs.empty()) log_.info(costs);
        log_.notice("stopped by signal ", stopped_, " after step ", at_.step,
                    setup_.rank() == 0 ? cat("; to continue: trainer --resume ", folder_) : "");
        return 128 + stopped_;
    }
    run_log_->done(at_, "finished", cost);
    std::string text = cat("done: ", at_.step, " steps");
    if (setup_.rank() == 0) {
        text += fmt::format(" in {}, {:.1f} img/s", clock_text(run_log_->seconds()),
                            run_log_->images_per_second());
        if (last_val_.count > 0)
            text += fmt::format(", validation top1 {:.2f} % (best {:.2f} %)",
                                100 * last_val_.top1_part(), 100 * best_top1_);
        if (!costs.empty()) text += "\n" + costs;
        text += cat("\nmodel: ", find_model_file(folder_), "   try: trainer predict --from ",
                    folder_, " IMAGE");
    }
    log_.info(text);
    return 0;
}

}  // namespace convoy
