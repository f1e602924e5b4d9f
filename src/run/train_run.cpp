// train_run.cpp — the loop of a training run: epochs, steps, validations.
#include "src/run/train_run.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "src/base/check.h"
#include "src/base/text.h"
#include "src/checkpoint/checkpoint.h"
#include "src/train/learning_rate.h"

namespace convoy {

TrainRun::TrainRun(JobSetup& setup, size_t bucket_bytes, std::string link)
    : setup_(setup), bucket_bytes_(bucket_bytes), link_(std::move(link)) {
    // A checkpoint between the two parts of a run is of the first one. Other ranks follow in
    // agree().
    const Position at = setup_.resumed ? setup_.resumed->meta.position : Position{};
    make_state(at.epoch < config_.freeze_epochs ||
               (at.epoch == config_.freeze_epochs && at.epoch > 0 && at.consumed == 0));
    build();
    steps_per_epoch_ = loader_->steps();
    if (config_.early_stop > 0 && !val_loader_)
        fail("--early-stop needs validation images: give --val or --val-split");
    if (config_.save_every > 0)
        save_steps_ =
            std::max<int64_t>(1, std::llround(config_.save_every * double(steps_per_epoch_)));
    base_lr_ = base_learning_rate(config_, model_->has_batch_norm());
    if (setup_.rank() == 0) {
        folder_ = open_run_folder(config_, 0);
        lock_ = std::make_unique<FolderLock>(folder_, /*takes_over=*/false, log_);
    }
    run_log_ = std::make_unique<RunLog>(log_, folder_, setup_.rank(), config_.log_every,
                                        int(setup_.classes.size()), config_.tensorboard);
    run_log_->print_events(config_.json);
    if (!config_.page.empty()) page_address(config_.page);  // a mistake in it ends the run here
    if (!config_.page.empty()) run_log_->show_on(&page_state_);
}

Clocks TrainRun::clocks() const {
    return {clocks_before_.data_wait + loader_->waited_seconds(),
            clocks_before_.net_wait + trainer_->seconds_waited_for_network(),
            communicator_.seconds_busy(), compute_seconds_};
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
        const bool for_all = !agreed_ || dynamic_cast<const JobError*>(&error);
        for_all ? communicator_.abort(error.what()) : communicator_.fail_alone(error.what());
        trace_failure();
        if (save_after_failure(error) && is_done_) {
            log_.notice("this rank had done every step when it lost the others: ", error.what());
            return finish(costs_->last());
        }
        yield_folder();
        run_log_->event("error", {{"step", at_.step}, {"cause", error.what()}});
        throw;
    }
}

void TrainRun::begin() {
    pace_ = clocks(), pace_step_ = at_.step;
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
    log_job();
    costs_ = std::make_unique<CostMeter>(setup_.job, spent_before_);
    usage_ = std::make_unique<Utilisation>(communicator_, clocks());
    communicator_.offer(offer_text(make_offer(setup_, bucket_bytes_)));
}

int TrainRun::train() {
    is_done_ = false;
    go_to(at_);
    watch_for_stalls();
    if (trace_due_) write_trace();
    while (!over() || epoch_done()) {  // done: a rank was lost before the epoch was closed
        if (head_only_ && at_.epoch >= config_.freeze_epochs) thaw();
        train_epoch();
        if (epoch_done()) {
            keep_weights_equal();
            tell_usage();
            const Amounts cost = costs_->of_job();
            if (logged_epoch_ < at_.epoch) run_log_->epoch(at_, epoch_sums_, cost);
            logged_epoch_ = at_.epoch;
            if (val_loader_ && !stopped_ && config_.schedule != Schedule::kRange) validate();
            go_to({at_.epoch + 1, 0, at_.step});
        }
        if (save_is_due() && !over()) try_to_save(at_, false);
    }
    finish_trace();
    is_done_ = true;
    const Amounts cost = costs_->of_job();
    if (setup_.rank() == 0 && folder_.empty())
        folder_ = open_run_folder(config_, std::max(first_rank_, 1));
    save(at_, false);
    usage_->step() == at_.step ? take_usage() : tell_usage();
    setup_.job.finish();
    return finish(cost);
}

void TrainRun::go_to(const Position& at) {
    if (at.epoch != at_.epoch) epoch_sums_ = {};
    at_ = committed_ = at, committed_sums_ = epoch_sums_;
    run_log_->commit();
}

// The sums of a step that is done, or of this rank's part of it. upto: how far the job has come for
// good; none: a lost rank would take parts of the state with it.
void TrainRun::count(const Sums& sums, bool local, double lr, std::optional<Position> upto) {
    const int64_t step_in_epoch = (at_.consumed + config_.batch - 1) / config_.batch;
    run_log_->step(at_, step_in_epoch, sums, local, lr, clocks(), trainer_->gradient_norm());
    if (local) return;
    epoch_sums_ += sums;  // the same on every rank: all check it
    if (upto) {
        committed_ = *upto, committed_sums_ = epoch_sums_;
        run_log_->commit();
        step_sums_ = sums, step_lr_ = lr;
    }
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
    communicator_.set_progress(at_.step, Phase::kData);
    loader_->start(uint32_t(at_.epoch), at_.consumed);
    while (Batch* batch = next_batch()) {
        // By position rather than by steps done, which a change of --batch would shift.
        const bool by_steps = config_.steps > 0;
        const double lr = learning_rate(
            config_, base_lr_,
            by_steps ? at_.step : at_.epoch * steps_per_epoch_ + at_.consumed / config_.batch,
            by_steps ? config_.steps : config_.epochs * steps_per_epoch_, steps_per_epoch_);
        const auto begin = Clock::now();
        const double waited = trainer_->seconds_waited_for_network();
        Sums sums = trainer_->step(*batch, at_, lr, loader_->peek());
        if (const std::string why = trainer_->take_graph_failure(); !why.empty())
            log_.notice(why, "; steps go on op by op");
        at_.consumed += batch->global_wanted;
        ++at_.step;
        loader_->release(batch);
        bool local = trainer_->local(), gathers = trainer_->gathers() && gathers_now();
        Position upto = at_;  // what `sums` are of
        // What is trained is on servers, or in stages.
        const bool is_apart = !local && !gathers && trainer_->gathers();
        if (gathers) {
            const Sums all = trainer_->gather(at_);
            if (local) sums = {}, local = false;
            if (trainer_->local()) sums += all, upto = at_;
            if (const auto figures = trainer_->sync().measured(); !figures.empty())
                run_log_->event("sync", {{"step", at_.step}, {"figures", figures}});
        }
        compute_seconds_ +=
            std::max(seconds_since(begin) - (trainer_->seconds_waited_for_network() - waited), 0.0);
        if (local) tell_when_it_stops();
        for (const std::string& reason : loader_->take_bad_reasons())
            log_.notice("left out: ", reason);
        count(sums, local, lr, is_apart ? std::nullopt : std::optional(upto));
        if (!config_.page.empty() && !local) {  // nobody waits: told with the sums of the next step
            take_usage();
            if (at_.step >= usage_->next_step()) usage_->tell(at_.step, communicator_, clocks());
        }
        advise();
        const int agreed = trainer_->stop_agreed();
        if (agreed != kNewRing) stopped_ = agreed;
        const bool can_check = config_.check_every > 0 && !drift_ &&
                               (gathers == trainer_->gathers() || trainer_->pipeline());
        const bool ends = over() && !epoch_done();  // else compared, and saved, there
        if (can_check && (ends || at_.step - checked_step_ >= config_.check_every))
            keep_weights_equal();
        if (at_.step % config_.log_every == 0) costs_->read();
        trace_step(!trainer_->local() || gathers);
        check_bad(epoch_sums_.skipped + int64_t(setup_.data.train->damaged()), loader_->samples(),
                  "images of this epoch");
        if (over()) return;
        if (save_is_due() && !epoch_done()) {
            try {
                if (can_check && checked_step_ < at_.step) keep_weights_equal();
                costs_->of_job();
            } catch (const Error&) {  // a rank is lost: with the cost as it was told last
                try_to_save(at_, false);
                throw;
            }
            try_to_save(at_, false);
        }
        if (agreed == kNewRing) part(can_check);
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
    const std::vector<std::span<float>> arenas = optimizer_->arenas();
    Difference found = compare_with(0, std::vector<bool>(size_t(equals.world()), true),
                                    model_->params(), arenas, sizes_of(arenas), *backend_, equals);
    if (found.ranks.empty()) return;
    take(found, arenas, *backend_);
    const int stage = pipeline ? pipeline->stage() : 0;  // ranks are replicas of this stage
    for (int& rank : found.ranks) rank = rank * config_.pipeline + stage;
    trainer_->sync().changed();
    tell_unequal(found, stage, at_.step);
}

void TrainRun::tell_unequal(const Difference& found, int root, int64_t step) {
    drift_ = std::ranges::any_of(factor_choices(), &FactorChoice::use);
    std::vector<std::string> ranks;
    for (const int rank : found.ranks) ranks.push_back(std::to_string(rank));
    log_.notice(
        "after step ", step, " rank ", join_text(ranks, " and "), " held other weights than rank ",
        root, "; all have those of rank ", root, " now. The first tensor that differed was ",
        found.tensor, ". ",
        drift_ ? "Processors that add in another order differ by roundings; CONVOY_FACTORS=off "
                 "keeps all "
                 "equal"
               : "Data was damaged in a memory or on its way; a token (--token-file) protects the "
                 "way");
    run_log_->event(
        "unequal",
        {{"step", step}, {"ranks", found.ranks}, {"root", root}, {"tensor", found.tensor}});
}

// With --sync average:H: after every H steps, all at once. Wherever the weights are about to be
// used.
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
        throw JobError(cat(skipped, " of ", samples, " ", what,
                           " did not decode, more than --max-bad ", config_.max_bad,
                           " allows; `trainer check` names them all"));
}

void TrainRun::validate() {
    const Span span(track_, kTraceValidation, at_.step);
    Sums sums;
    optimizer_->swap_average();
    try {
        sums = evaluator_->run(*val_loader_, at_.step, {}, &log_);
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
    costs_->of_job();  // for the checkpoint; before this rank knows how good it is
    last_val_ = sums, last_val_at_ = at_;
    stale_ = sums.top1_part() > peak_top1_ ? 0 : stale_ + 1;
    peak_top1_ = std::max(peak_top1_, sums.top1_part());
    const bool is_best = sums.top1_part() > best_top1_;
    if (is_best) best_top1_ = sums.top1_part();
    run_log_->validation(at_, sums, is_best);
    if (is_best && config_.save_every > 0) try_to_save({at_.epoch + 1, 0, at_.step}, true);
}

// The last lines, when all ranks are done.
int TrainRun::finish(const Amounts& cost) {
    std::string costs = setup_.rank() == 0 ? usage_->text() : "";
    if (const std::string money = cost_text(cost); !costs.empty() && !money.empty())
        costs += "\n" + money;
    if (stopped_) {
        run_log_->done(at_, cat("signal ", stopped_), cost);
        if (!costs.empty()) log_.info(costs);
        log_.notice("stopped by signal ", stopped_, " after step ", at_.step,
                    setup_.rank() == 0 ? cat("; to continue: trainer --resume ", folder_) : "");
        return 128 + stopped_;
    }
    run_log_->done(at_, has_enough() ? "stopped early" : "finished", cost);
    std::string text = cat("done: ", at_.step, " steps");
    if (setup_.rank() == 0) {
        text += fmt::format(" in {}, {:.1f} img/s", clock_text(run_log_->seconds()),
                            run_log_->images_per_second());
        if (last_val_.count > 0)
            text += fmt::format(", validation top1 {:.2f} % (best {:.2f} %)",
                                100 * last_val_.top1_part(), 100 * peak_top1_);
        if (diverges_)
            text += "; the loss has grown to four times its least";
        else if (has_enough())
            text += cat("; --early-stop: ", stale_, " validations without a better one");
        if (!costs.empty()) text += "\n" + costs;
        if (config_.schedule != Schedule::kRange && !folder_.empty())
            text += cat("\nmodel: ", find_model_file(folder_, log_),
                        "   try: trainer predict --from ", folder_, " IMAGE");
    }
    log_.info(text);
    return 0;
}

}  // namespace convoy
