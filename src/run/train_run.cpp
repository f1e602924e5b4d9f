#include "src/run/train_run.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/base/text.h"
#include "src/run/quality.h"
#include "src/step/learning_rate.h"

namespace convoy {

TrainRun::TrainRun(JobSetup& setup)
    : setup_(setup),
      engine_(setup, [this] { return recovery_.request(); }),
      folder_({setup, engine_, progress_}),
      messages_({{setup, engine_, progress_}, folder_}),
      traces_({{setup, engine_, progress_}, folder_}),
      recovery_({{setup, engine_, progress_}, folder_}, messages_),
      base_lr_(base_learning_rate(config_, engine_.model->has_batch_norm())) {
    progress_.steps_per_epoch = engine_.loader->steps();
}

int TrainRun::run() {
    try {
        recovery_.start();
        if (setup_.job.is_newcomer()) recovery_.go_on();  // into the job, at its place
        for (;;) {
            try {
                if (!recovery_.has_started()) recovery_.start_together();
                if (!messages_.has_begun()) begin();
                recovery_.wait_for_ranks();
                return train();
            } catch (const RingBroken&) {
                const bool lost = recovery_.go_on();
                if (lost && messages_.has_begun()) traces_.write();
            }
        }
    } catch (const Recovery::Left&) {
        return 0;
    } catch (const std::exception& error) {
        const bool for_all =
            !recovery_.has_started() || dynamic_cast<const JobError*>(&error) != nullptr;
        for_all ? communicator_.abort(error.what()) : communicator_.fail_alone(error.what());
        if (messages_.has_begun()) traces_.write();
        if (folder_.save_after_failure(error) && progress_.is_done) {
            log_.notice("this rank had done every step when it lost the others: ", error.what());
            return finish();
        }
        folder_.yield();
        folder_.log.event("error", {{"step", progress_.at.step}, {"cause", error.what()}});
        throw;
    }
}

void TrainRun::begin() {
    const auto& [train, val, _, is_stream] = setup_.data;
    check_bad(int64_t(train->damaged()), engine_.loader->samples(), "training images");
    if (val) check_bad(int64_t(val->damaged()), engine_.val_loader->samples(), "validation images");
    count_steps();
    messages_.begin(base_lr_);
    if (progress_.at.step >= progress_.total_steps && setup_.rank() == 0)
        log_.notice(
            "this run is finished: nothing is left to train; --epochs or --steps with a larger "
            "number continues it");
    communicator_.offer(offer_text(make_offer(setup_)));
}

// The remaining steps of this epoch, and those of the epochs after it.
void TrainRun::count_steps() {
    const Position& at = progress_.at;
    const int64_t left = engine_.loader->steps(at.consumed) +
                         (config_.epochs - at.epoch - 1) * progress_.steps_per_epoch;
    progress_.total_steps =
        config_.steps > 0 ? config_.steps : at.step + std::max<int64_t>(left, 0);
}

int TrainRun::train() {
    progress_.is_done = false;
    folder_.log.commit();
    traces_.watch_for_stalls();
    // An epoch may be done but not closed: a rank was lost, or a signal came, at its end.
    while (!over() || (epoch_done() && !progress_.stopped)) {
        train_epoch();
        if (epoch_done()) end_epoch();
        if (folder_.is_due(progress_.at.step) && !over()) folder_.try_to_save(progress_.at);
    }
    traces_.finish();
    progress_.is_done = true;
    messages_.tell_usage();
    if (setup_.rank() == 0 && folder_.path().empty()) folder_.open();
    folder_.save(progress_.at);
    setup_.job.finish();
    return finish();
}

void TrainRun::train_epoch() {
    communicator_.set_progress(progress_.at.step, Phase::kData);
    engine_.loader->start(uint32_t(progress_.at.epoch), progress_.at.consumed);
    const auto next_batch = [&] {
        const Span span(engine_.track, kTraceWaitData, progress_.at.step + 1);
        return engine_.loader->next();
    };
    while (Batch* batch = next_batch()) {
        const double lr = learning_rate_now();
        const StepResult result = train_step(*batch, lr);
        engine_.loader->release(batch);
        messages_.step(result, lr);
        count(result, lr);
        messages_.after_step(result);
        const int agreed = engine_.trainer->stop_agreed();
        if (agreed != kNewRing) progress_.stopped = agreed;
        // At the end of an epoch weights are compared and saved by end_epoch().
        recovery_.check_weights(result.met, /*now=*/over() && !epoch_done());
        traces_.step();
        check_bad(progress_.epoch_sums.skipped + int64_t(setup_.data.train->damaged()),
                  engine_.loader->samples(), "images of this epoch");
        if (over()) return;
        if (folder_.is_due(progress_.at.step) && !epoch_done()) save_within_epoch(result.met);
        if (agreed == kNewRing) recovery_.depart(result.met);
        communicator_.set_progress(progress_.at.step, Phase::kData);
    }
}

// Computed from the position, because a change of --batch would shift the steps done.
double TrainRun::learning_rate_now() const {
    const Position& at = progress_.at;
    const int64_t per_epoch = progress_.steps_per_epoch;
    return config_.steps > 0 ? learning_rate(config_, base_lr_, at.step, config_.steps, per_epoch)
                             : learning_rate(config_, base_lr_,
                                             at.epoch * per_epoch + at.consumed / config_.batch,
                                             config_.epochs * per_epoch, per_epoch);
}

// All ranks meet, because they are about to use the weights.
StepResult TrainRun::train_step(const Batch& batch, double lr) {
    Position& at = progress_.at;
    const auto begin = Clock::now();
    const double waited = engine_.trainer->seconds_waited_for_network();
    StepResult result = engine_.trainer->step(batch, at, lr, engine_.loader->peek());
    at.consumed += batch.global_wanted;
    ++at.step;
    engine_.trainer->meet(
        result, at, epoch_done() || at.step >= progress_.total_steps || folder_.is_due(at.step));
    const double waits = engine_.trainer->seconds_waited_for_network() - waited;
    engine_.compute_seconds += std::max(seconds_since(begin) - waits, 0.0);
    if (const std::string what = engine_.trainer->take_notice(); !what.empty())
        setup_.rank() == 0 ? log_.notice(what) : log_.detail(what);
    if (!result.of_all) say_that_it_stops();
    return result;
}

// If all ranks have met, the step is final. Otherwise a lost rank would take parts of the state
// with it.
void TrainRun::count(const StepResult& result, double lr) {
    if (!result.of_all) return;
    const Sums& sums = result.sums;
    progress_.epoch_sums += sums;
    if (result.met) {
        progress_.commit();
        folder_.log.commit();
        progress_.step_sums = sums, progress_.step_lr = lr;
    }
    if (config_.schedule != Schedule::kRange || sums.count == 0) return;
    const bool is_first = progress_.at.step == 1;
    smooth_loss_ = is_first ? sums.mean_loss() : 0.8 * smooth_loss_ + 0.2 * sums.mean_loss();
    least_loss_ = is_first ? smooth_loss_ : std::min(least_loss_, smooth_loss_);
    progress_.diverges = smooth_loss_ > 4 * least_loss_;
}

void TrainRun::save_within_epoch(bool met) {
    try {
        recovery_.check_weights(met, /*now=*/true);
        messages_.tell_usage();
    } catch (const Error&) {  // a rank is lost: with the cost that was told last
        folder_.try_to_save(progress_.at);
        throw;
    }
    folder_.try_to_save(progress_.at);
}

void TrainRun::end_epoch() {
    recovery_.compare_weights();
    messages_.tell_usage();
    const Position at = progress_.at;
    if (progress_.logged_epoch < at.epoch && progress_.epoch_sums.count > 0)
        folder_.log.epoch(at, progress_.epoch_sums, progress_.spent);
    progress_.logged_epoch = at.epoch;
    if (engine_.val_loader && !progress_.stopped && config_.schedule != Schedule::kRange)
        validate();
    if (!progress_.stopped) progress_.go_to({at.epoch + 1, 0, at.step});  // else --resume will
    folder_.log.commit();
}

void TrainRun::validate() {
    const Span span(engine_.track, kTraceValidation, progress_.at.step);
    Sums sums;
    Quality quality(int(setup_.model.classes.size()));
    engine_.optimizer->swap_average();
    try {
        sums = engine_.evaluator->run(
            *engine_.val_loader, progress_.at.step,
            [&](const Batch& batch, Tensor logits) {
                quality.add(batch, logits, *engine_.backend);
            },
            &log_);
    } catch (...) {
        engine_.optimizer->swap_average();
        throw;
    }
    engine_.optimizer->swap_average();
    for (const std::string& reason : engine_.val_loader->take_bad_reasons())
        log_.notice("left out of the validation: ", reason);
    if (engine_.evaluator->stopped() == kNewRing) recovery_.depart(/*met=*/false);
    progress_.stopped = engine_.evaluator->stopped();
    if (progress_.stopped) return;
    const auto by_class = quality.classes_of_all(communicator_);
    check_bad(sums.skipped + int64_t(setup_.data.val->damaged()), engine_.val_loader->samples(),
              "validation images");
    messages_.tell_usage();  // for the checkpoint; before this rank knows how good it is
    progress_.last_val = sums, progress_.last_val_at = progress_.at;
    const double top1 = sums.top1_part();
    progress_.stale = top1 > progress_.peak_top1 ? 0 : progress_.stale + 1;
    progress_.peak_top1 = std::max(progress_.peak_top1, top1);
    const double best = progress_.best_top1;
    const bool is_best = top1 > best;
    progress_.best_top1 = std::max(best, top1);
    folder_.log.validation(progress_.at, sums, is_best, by_class, setup_.model.classes);
    if (is_best && config_.save_every > 0 &&
        !folder_.try_to_save({progress_.at.epoch + 1, 0, progress_.at.step}, true))
        progress_.best_top1 = best;
}

// Ranks agree on a signal with their sums, so after a local step it must wait for a meeting.
void TrainRun::say_that_it_stops() {
    if (told_to_wait_ || !setup_.job.stop()) return;
    told_to_wait_ = true;
    log_.notice("after step ", progress_.at.step,
                ": stopping when the ranks meet next, at the next average, checkpoint or end of an "
                "epoch; a second signal ends at once, without a checkpoint");
}

void TrainRun::check_bad(int64_t skipped, int64_t samples, const char* what) const {
    if (const auto why = too_many_bad(uint64_t(skipped), uint64_t(samples), config_.max_bad, what);
        !why.empty())
        throw JobError(why);
}

int TrainRun::finish() {
    messages_.done();
    return progress_.stopped ? 128 + progress_.stopped : 0;
}

}  // namespace convoy
