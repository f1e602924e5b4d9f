// train_run_again.cpp — a training run goes on with other ranks: some were lost, have left or join.
//
//   RingBroken ─► drop        what depends on shares goes; weights and optimizer state stay
//              ─► regroup     the next ring, newcomers in it  ◄─┐ another rank is lost
//              ─► agree       all take the state of the root   ─┘
//              ─► take_up, and train() goes on, or waits for --min-world ranks
//
// The root is the lowest rank of those that have done the most steps. A newcomer has done none, and
// gets progress, weights and optimizer state like any rank that is behind.
//
// A rank completes a step only with all sums of it, and sends sums of the next step only then. So
// ranks differ by one step at most, and a rank that lacks that step takes the state of the root. If
// no rank has completed the step, all redo it on the same samples. With --sync average the same
// holds for averages. Ranks agree with the sums of a step that some leave (SIGTERM) or join, so no
// step is redone then (part).
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/text.h"
#include "src/job/exchange.h"
#include "src/run/train_run.h"

namespace convoy {

using nlohmann::json;

// What this rank tells the others with its next sums.
int TrainRun::wish() {
    wish_ = setup_.job.stop();
    bool new_ring = communicator_.newcomer_waits();
    if (wish_ == SIGTERM && communicator_.min_world() > 0) {
        if (!asked_) asked_ = Clock::now();
        new_ring |= seconds_since(*asked_) >= setup_.job.notice_seconds;
    }
    return wish_ += (new_ring ? kNewRing : 0) + (wants_trace() ? kTraceWish : 0);
}

// All ranks have agreed on it with the sums of a step: those with SIGTERM leave, the others form a
// ring of their own. The barrier makes sure that every rank has those sums.
// `compare`: where one saves, all hold the same weights.
void TrainRun::part(bool compare) {
    if (compare && checked_step_ < at_.step) keep_weights_equal();
    planned_ = true;
    if (wish_ % kNewRing != SIGTERM) {
        communicator_.barrier();
        throw RingBroken("ranks come or go");
    }
    if (!folder_.empty()) try_to_save(at_, false);
    try {
        communicator_.barrier();
    } catch (const RingBroken&) {
        // Those that stay have seen it too.
    }
    communicator_.leave();
    run_log_->event("leave", {{"step", at_.step}});
    log_.notice("this rank has left the job after step ", at_.step,
                ", because of SIGTERM; the others go on",
                folder_.empty() ? "" : cat(". What it saved is in ", folder_));
    throw Left();
}

// Fewer than --min-world train no step. That some join, or a signal comes, all learn from sums.
void TrainRun::wait_for_ranks() {
    if (setup_.world() >= communicator_.min_world() || over()) return;
    if (at_.step > 0) try_to_save(at_, false);
    log_.notice(counted(size_t(setup_.world()), "rank"), setup_.world() == 1 ? " is" : " are",
                " left, fewer than --min-world ", communicator_.min_world(),
                ": waiting for ranks that --join, or for a signal");
    run_log_->event("wait", {{"step", at_.step}, {"ranks", setup_.world()}});
    for (int agreed = 0; agreed == 0;) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        Counters counters;
        set_counters(counters, {}, wish());
        communicator_.allreduce_sum(counters).get();
        agreed = agreed_wish(counters, setup_.world(), true);
        if (agreed == kNewRing) part();
        stopped_ = agreed;
    }
}

void regroup_before_start(JobSession& job) {
    const int world = job.world();
    for (std::string why;;) {
        try {
            job.regroup(-1, false, why);
            (void)gather_json(job.communicator(), nullptr);  // see agree()
            if (job.world() < world)
                job.log.notice(why, "; nothing was trained yet, so they set up the job again");
            return;
        } catch (const RingBroken&) {
            // once more
        }
    }
}

void TrainRun::go_on() {
    const auto begin = Clock::now();
    trainer_->sync().rewind();
    if (usage_) usage_->forget();
    at_ = committed_, epoch_sums_ = committed_sums_;
    run_log_->rewind();
    if (costs_ && !planned_ && !trace_) trace_ = trace_part(setup_.job.tracer);
    const bool planned = std::exchange(planned_, false);
    drop();
    std::string why;
    for (;;) try {
            cut_shares(setup_.job.regroup(at_.step, planned, why));
            const std::vector<json> all = tell();
            agree(all, take_shares(all));
            break;
        } catch (const RingBroken&) {
            // Another rank is lost: once more.
        }
    take_up();
    if (at_.step > pace_step_) pace_ = clocks(), pace_step_ = at_.step;
    const bool is_heir = setup_.rank() == 0 && folder_.empty();
    if (is_heir && open_folder()) {
        if (!std::filesystem::exists(folder_ + "/best")) best_top1_ = -1;
        log_.notice("checkpoints and log of the run are in ", folder_, " on this rank from now on");
    }
    yield_folder();
    run_log_->become(setup_.rank(), folder_, at_.step);
    // The last one may have died before it wrote down what it had.
    if (is_heir) logged_epoch_ = -1;
    if (is_heir && last_val_.count > 0 && last_val_at_.step == at_.step && at_.consumed == 0)
        run_log_->validation(last_val_at_, last_val_, false);
    if (is_heir && at_.step > 0)
        run_log_->event("step", {{"epoch", at_.epoch},
                                 {"step", at_.step},
                                 {"loss", step_sums_.mean_loss()},
                                 {"top1", step_sums_.top1_part()},
                                 {"images", step_sums_.count},
                                 {"lr", step_lr_}});
    track_->add(kTraceNewRing, begin, Clock::now(), setup_.world());
    log_.notice(why, fmt::format(", {:.2f} s", seconds_since(begin)));
    run_log_->event("regroup", {{"step", at_.step},
                                {"ranks", setup_.world()},
                                {"why", why},
                                {"seconds", seconds_since(begin)}});
    if (const std::string cuts = split_groups(); !cuts.empty() && setup_.rank() == 0)
        log_.notice(cuts);
    if (total_steps_ > 0) log_job(), serve_page();
}

// Ranks that start afresh have drawn the same weights from the same seed: then only a checksum
// travels. Else rank 0 alone has a state that counts.
void TrainRun::start_together() {
    if (Pipeline* const pipeline = trainer_->pipeline()) {
        const json state = broadcast_json(communicator_, {{"epoch", at_.epoch},
                                                          {"consumed", at_.consumed},
                                                          {"step", at_.step},
                                                          {"optimizer", optimizer_->steps_done},
                                                          {"peak", peak_top1_},
                                                          {"stale", stale_},
                                                          {"best", best_top1_}});
        peak_top1_ = state["peak"], stale_ = state["stale"];
        go_to({state["epoch"], state["consumed"], state["step"]});
        optimizer_->steps_done = state["optimizer"], best_top1_ = state["best"];
        if (!setup_.fresh) pipeline->scatter();
    } else if (setup_.world() > 1) {
        const auto all = tell();
        agree(all, take_shares(all));
        take_up();
    }
    agreed_ = true;
}

void TrainRun::cut_shares(const std::vector<int>& before) {
    const std::vector<double>& had = setup_.shares.weights;
    const double mean = std::accumulate(had.begin(), had.end(), 0.0) / double(had.size());
    std::vector<double> weights;  // a newcomer has no number from before
    for (const int rank : before)
        weights.push_back(size_t(rank) < had.size() ? had[size_t(rank)] : mean);
    if (std::ranges::count(weights, 0) == std::ssize(weights)) weights.assign(weights.size(), 1);
    setup_.shares.weights = std::move(weights);
}

static json sums_json(const Sums& s) { return {s.loss, s.correct, s.top5, s.count, s.skipped}; }
static Sums sums_from(const json& j) { return {j[0], j[1], j[2], j[3], j[4]}; }

// Collective: where each rank is.
std::vector<json> TrainRun::tell() {
    const double own_share = agreed_ ? 0 : setup_.shares.newcomer;
    const auto all = gather_json(communicator_, {{"step", at_.step},
                                                 {"sizes", sizes_of(optimizer_->arenas())},
                                                 {"shares", setup_.shares.weights},
                                                 {"share", own_share},
                                                 {"epoch", at_.epoch},
                                                 {"consumed", at_.consumed},
                                                 {"optimizer", optimizer_->steps_done},
                                                 {"best", best_top1_},
                                                 {"peak", peak_top1_},
                                                 {"stale", stale_},
                                                 {"stopped", stopped_},
                                                 {"head_only", head_only_},
                                                 {"trace", trace_.has_value()},
                                                 {"lr", step_lr_},
                                                 {"sums", sums_json(step_sums_)},
                                                 {"epoch_sums", sums_json(epoch_sums_)}});
    if (std::ranges::any_of(all, [](const json& one) { return one.is_null(); })) throw SetUpAgain();
    return all;
}
// Returns the root: the rank that has done the most steps; of those one whose epoch is not closed
// yet, so that its validation is repeated. The shares that it knows become those of all.
size_t TrainRun::take_shares(const std::vector<json>& all) {
    const auto root = std::ranges::max_element(all, {}, [](const json& one) {
        return std::pair(one["step"].get<int64_t>(), -one["epoch"].get<int64_t>());
    });
    if ((*root)["step"] < 0)
        fail(
            "the ranks that had the weights are gone, before this one had them: of --init, "
            "--resume or the job that it joined; start again, by --resume where there is a "
            "checkpoint");
    std::vector<double>& weights = setup_.shares.weights;
    weights = (*root)["shares"].get<std::vector<double>>();
    for (size_t rank = 0; rank < all.size(); ++rank)
        if (const double share = all[rank]["share"]; share > 0) weights[rank] = share;
    return size_t(root - all.begin());
}

// All get the progress, the weights and the optimizer state of the root. Collective. Where it
// throws, this rank has what it had.
void TrainRun::agree(const std::vector<json>& all, size_t root) {
    const json &its = all[root], &mine = all[size_t(setup_.rank())];
    const bool head_only = its["head_only"], thaws = head_only_ != head_only;
    if (!thaws && its["sizes"] != mine["sizes"])
        fail(
            "this rank has the model in another layout than the others: run the same build on all "
            "machines");
    std::vector<bool> has_step;  // the root's: then the state should be the same
    for (const json& one : all)
        has_step.push_back(one["step"] == its["step"] && one["head_only"] == head_only);
    std::vector<std::span<float>> arenas;
    if (!thaws) arenas = optimizer_->arenas();
    const Difference found = compare_with(int(root), has_step, model_->params(), arenas,
                                          its["sizes"], *backend_, communicator_);
    if (thaws) drop(), make_state(head_only);
    take(found, optimizer_->arenas(), *backend_);
    if (!found.ranks.empty() && has_step[size_t(setup_.rank())])
        tell_unequal(found, int(root), its["step"]);
    optimizer_->steps_done = its["optimizer"];
    follow(its);
    trace_due_ = std::ranges::any_of(all, [](const json& one) { return one["trace"].get<bool>(); });
    // Of a validation one rank may have the sums, another not.
    for (const json& one : all)
        if (one["step"] == its["step"] && stopped_ == 0) stopped_ = one["stopped"];
}

// This rank is where the root is.
void TrainRun::follow(const json& root) {
    const bool is_behind = at_.step >= 0 && at_.step < root["step"];
    at_ = {root["epoch"], root["consumed"], root["step"]};
    best_top1_ = root["best"], peak_top1_ = root["peak"], stale_ = root["stale"];
    stopped_ = root["stopped"];
    if (is_behind) {  // the step that it takes over instead of doing it
        step_sums_ = sums_from(root["sums"]), step_lr_ = root["lr"];
        const int64_t step_in_epoch = (at_.consumed + config_.batch - 1) / config_.batch;
        run_log_->step(at_, step_in_epoch, step_sums_, false, step_lr_, clocks_before_);
    }
    epoch_sums_ = sums_from(root["epoch_sums"]);
    agreed_ = true;
}

void TrainRun::take_up() {
    if (!trainer_) build();
    go_to(at_);
    checked_step_ = at_.step + 1 - config_.check_every;  // after the next step
    drift_ = false;
}

}  // namespace convoy
