#include "src/run/recovery.h"

#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "data/whiten.h"
#include "src/base/text.h"
#include "src/checkpoint/torch_file.h"
#include "src/checkpoint/weights.h"
#include "src/run/fit_head.h"
#include "src/session/rank_json.h"

namespace convoy {
using nlohmann::json;

// ---- the start ----------------------------------------------------------------------------------

void Recovery::start() {
    Position at;
    if (setup_.resumed) {
        const CheckpointMeta& meta = setup_.resumed->meta;
        const bool parts = (meta.order + setup_.order).find(" mine ") != std::string::npos;
        const bool other_images = meta.data_fingerprint != setup_.fingerprint && !parts;
        restore(*setup_.resumed, *engine_.model, *engine_.optimizer, *engine_.backend);
        at = meta.position;
        if (other_images) {
            log_.notice("the training set is not that of ", setup_.resumed->folder, ": epoch ",
                        at.epoch + 1, " begins", at.consumed > 0 ? " again" : "", " with the ",
                        setup_.data.train->size(), " images found now");
            at.consumed = 0;
        } else if (at.consumed > 0 && meta.order != setup_.order) {
            log_.notice("epoch ", at.epoch + 1, " begins again: the checkpoint is ", at.consumed,
                        " images into it, in the order '", meta.order, "'; the order is '",
                        setup_.order, "' now");
            at.consumed = 0;
        }
        progress_.peak_top1 = meta.peak_top1, progress_.stale = meta.stale;
        progress_.spent = meta.spent;
        // A new --out folder holds no best checkpoint yet.
        if (std::filesystem::exists(folder_.path() + "/best")) progress_.best_top1 = meta.best_top1;
        std::error_code none;
        const auto resumed = std::filesystem::absolute(setup_.resumed->folder);
        if (std::filesystem::equivalent(folder_.path(), resumed.parent_path(), none))
            folder_.set_saved(at.consumed < engine_.loader->samples() ? at.step : -1);
        log_.info("resumed from ", setup_.resumed->folder, ": epoch ", at.epoch + 1, ", ",
                  at.consumed, " images into it, step ", at.step);
        setup_.resumed.reset();
    } else if (setup_.rank() == 0 && config_.init.empty()) {
        whiten();
    } else if (setup_.rank() == 0) {
        const SafeTensors weights = read_weights(config_.init, log_);
        const ImportReport report =
            import_weights(weights, *engine_.model, *engine_.backend, /*partial=*/true);
        log_.notice("weights from ", config_.init, ": ", report.text());
        if (config_.freeze_epochs > 0)
            import_weights(fit_head(weights, setup_), *engine_.model, *engine_.backend, false);
    }
    const bool has_state = setup_.rank() == 0 || (setup_.model.fresh && !setup_.job.is_newcomer());
    if (!has_state) at.step = -1;  // see agree()
    progress_.go_to(at);
}

// Sets the weights of a first convolution with 'init whiten'.
void Recovery::whiten() {
    const auto params = engine_.model->params().all();
    const auto first =
        std::ranges::find(params, Init::kWhiten, [](const Param* p) { return p->init.kind; });
    if (first == params.end()) return;
    const std::vector<float> filters = whitening_filters(
        *setup_.data.train,
        training_preprocess(config_, engine_.model->input(), engine_.model->statistics()),
        (*first)->shape.H, (*first)->shape.W);
    engine_.backend->upload((*first)->value.data, filters.data(), filters.size() * sizeof(float));
}

// Ranks that start afresh have drawn the same weights from the same seed: then only a checksum
// travels. Otherwise rank 0 alone has a state that counts.
void Recovery::start_together() {
    if (setup_.world() > 1) {
        const std::vector<json> all = tell();
        const size_t root = take_shares(all);
        if (engine_.sync().scatter(setup_.model.fresh))
            follow(all[root]);
        else
            agree(all, root);
        take_up();
    }
    agreed_ = true;
}

// ---- ranks that leave or join -------------------------------------------------------------------

int Recovery::request() {
    request_ = setup_.job.stop();
    bool new_ring = communicator_.newcomer_waits();
    if (request_ == SIGTERM && communicator_.min_world() > 0) {
        if (!asked_) asked_ = Clock::now();
        new_ring |= seconds_since(*asked_) >= setup_.job.notice_seconds;
    }
    return request_ += new_ring ? kNewRing : 0;
}

// Ranks with SIGTERM leave, the others form a ring of their own. The barrier makes sure that every
// rank has the sums of the step.
void Recovery::depart(bool met) {
    check_weights(met, /*now=*/true);
    planned_ = true;
    if (request_ % kNewRing != SIGTERM) {
        communicator_.barrier();
        throw RingBroken("ranks come or go");
    }
    if (!folder_.path().empty()) folder_.try_to_save(progress_.at);
    try {
        communicator_.barrier();
    } catch (const RingBroken&) {
        // The ranks that stay have seen it too.
    }
    communicator_.leave();
    folder_.log.event("leave", {{"step", progress_.at.step}});
    log_.notice("this rank has left the job after step ", progress_.at.step,
                ", because of SIGTERM; the others go on",
                folder_.path().empty() ? "" : cat(". What it saved is in ", folder_.path()));
    throw Left();
}

// A newcomer, or a signal, becomes known to all ranks with sums.
void Recovery::wait_for_ranks() {
    if (setup_.world() >= communicator_.min_world() || progress_.over(config_)) return;
    if (progress_.at.step > 0) folder_.try_to_save(progress_.at);
    log_.notice(counted(size_t(setup_.world()), "rank"), setup_.world() == 1 ? " is" : " are",
                " left, fewer than --min-world ", communicator_.min_world(),
                ": waiting for ranks that --join, or for a signal");
    folder_.log.event("wait", {{"step", progress_.at.step}, {"ranks", setup_.world()}});
    for (int agreed = 0; agreed == 0;) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        Counters counters;
        set_counters(counters, {}, request());
        communicator_.allreduce_sum(counters).get();
        agreed = agreed_request(counters, setup_.world(), true);
        if (agreed == kNewRing) depart(false);
        progress_.stopped = agreed;
    }
}

// ---- ranks that were lost -----------------------------------------------------------------------

void regroup_before_start(JobSession& job) {
    const int world = job.world();
    for (;;) try {
            const Ranks ranks = job.regroup(-1, false);
            (void)gather_json(job.communicator(), nullptr);  // see tell()
            if (job.world() < world && job.rank() == 0)
                job.log.notice(ranks.why,
                               "; nothing was trained yet, so they set up the job again");
            return;
        } catch (const RingBroken&) {
            // once more
        }
}

bool Recovery::go_on() {
    const auto begin = Clock::now();
    engine_.sync().rewind();
    progress_.rewind();
    messages_.rewind();
    const bool planned = std::exchange(planned_, false), is_new = !agreed_;
    engine_.drop();
    Ranks ranks;
    for (;;) try {
            ranks = setup_.job.regroup(progress_.at.step, planned);
            cut_shares(ranks.before);
            const std::vector<json> all = tell();
            agree(all, take_shares(all));
            break;
        } catch (const RingBroken&) {
            // Another rank is lost: once more.
        }
    take_up();
    take_over();
    const double seconds = seconds_since(begin);
    engine_.track->add(kTraceNewRing, begin, Clock::now(), setup_.world());
    const std::string news = cat(ranks.why, fmt::format(", {:.2f} s", seconds));
    setup_.rank() == 0 || is_new ? log_.notice(news) : log_.detail(news);  // once per job
    folder_.log.event("regroup", {{"step", progress_.at.step},
                                  {"ranks", setup_.world()},
                                  {"why", ranks.why},
                                  {"seconds", seconds}});
    messages_.new_ring();
    return !planned;
}

// If this rank is rank 0 from now on, it saves and logs. The last one may have died before it wrote
// down the last step.
void Recovery::take_over() {
    const Position& at = progress_.at;
    const bool is_heir = setup_.rank() == 0 && folder_.path().empty();
    if (is_heir && folder_.try_to_open()) {
        if (!std::filesystem::exists(folder_.path() + "/best")) progress_.best_top1 = -1;
        log_.notice("this rank writes checkpoints and log of the run from now on, in ",
                    folder_.path());
    }
    folder_.yield();
    folder_.log.become(setup_.rank(), folder_.path(), at.step);
    if (!is_heir) return;
    progress_.logged_epoch = -1;
    if (progress_.last_val.count > 0 && progress_.last_val_at.step == at.step && at.consumed == 0)
        folder_.log.validation(progress_.last_val_at, progress_.last_val, false);
    if (at.step > 0)
        folder_.log.event("step", {{"epoch", at.epoch},
                                   {"step", at.step},
                                   {"loss", progress_.step_sums.mean_loss()},
                                   {"top1", progress_.step_sums.top1_part()},
                                   {"images", progress_.step_sums.count},
                                   {"lr", progress_.step_lr}});
}

void Recovery::cut_shares(const std::vector<int>& before) {
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

// Where each rank is. Collective.
std::vector<json> Recovery::tell() {
    const RunProgress& p = progress_;
    const double own_share = agreed_ ? 0 : setup_.shares.newcomer;
    std::vector<size_t> sizes;
    for (const std::span<float> arena : engine_.optimizer->arenas()) sizes.push_back(arena.size());
    const auto all = gather_json(communicator_, {{"step", p.at.step},
                                                 {"sizes", sizes},
                                                 {"shares", setup_.shares.weights},
                                                 {"share", own_share},
                                                 {"epoch", p.at.epoch},
                                                 {"consumed", p.at.consumed},
                                                 {"optimizer", engine_.optimizer->steps_done},
                                                 {"best", p.best_top1},
                                                 {"peak", p.peak_top1},
                                                 {"stale", p.stale},
                                                 {"stopped", p.stopped},
                                                 {"lr", p.step_lr},
                                                 {"sums", sums_json(p.step_sums)},
                                                 {"epoch_sums", sums_json(p.epoch_sums)}});
    if (std::ranges::any_of(all, [](const json& one) { return one.is_null(); })) throw SetUpAgain();
    return all;
}

// Returns the root: the rank that has done the most steps; among equals one whose epoch is not
// closed yet, so that its validation is repeated. All ranks take the root's shares.
size_t Recovery::take_shares(const std::vector<json>& all) {
    const auto root = std::ranges::max_element(all, {}, [](const json& one) {
        return std::pair(one["step"].get<int64_t>(), -one["epoch"].get<int64_t>());
    });
    if ((*root)["step"] < 0)
        fail(
            "the ranks with the weights (of --init, --resume, or the job that this rank joined) "
            "were lost before this rank had received them; start again, with --resume if there is "
            "a checkpoint");
    std::vector<double>& weights = setup_.shares.weights;
    weights = (*root)["shares"].get<std::vector<double>>();
    for (size_t rank = 0; rank < all.size(); ++rank)
        if (const double share = all[rank]["share"]; share > 0) weights[rank] = share;
    return size_t(root - all.begin());
}

// All ranks get the progress, the weights and the optimizer state of the root. Collective. If it
// throws, this rank keeps its state.
void Recovery::agree(const std::vector<json>& all, size_t root) {
    const json &its = all[root], &mine = all[size_t(setup_.rank())];
    if (its["sizes"] != mine["sizes"])
        fail(
            "the model has another layout on this rank than on the others: run the same build on "
            "all machines");
    std::vector<bool> has_step;  // the root's: then the state should be the same
    for (const json& one : all) has_step.push_back(one["step"] == its["step"]);
    const Difference found =
        take_from(int(root), has_step, engine_.model->params(), engine_.optimizer->arenas(),
                  *engine_.backend, communicator_);
    if (!found.ranks.empty() && has_step[size_t(setup_.rank())])
        tell_unequal(found, int(root), its["step"]);
    follow(its);
    // One rank may have the sums of a validation, another not.
    for (const json& one : all)
        if (one["step"] == its["step"] && progress_.stopped == 0)
            progress_.stopped = one["stopped"];
}

// This rank is where the root is.
void Recovery::follow(const json& root) {
    RunProgress& p = progress_;
    const bool is_behind = p.at.step >= 0 && p.at.step < root["step"];
    p.at = {root["epoch"], root["consumed"], root["step"]};
    p.best_top1 = root["best"], p.peak_top1 = root["peak"], p.stale = root["stale"];
    p.stopped = root["stopped"];
    engine_.optimizer->steps_done = root["optimizer"];
    if (is_behind) {  // the step that it takes over instead of doing it
        p.step_sums = sums_from(root["sums"]), p.step_lr = root["lr"];
        folder_.log.step(p.at, p.step_in_epoch(config_), p.step_sums, false, p.step_lr,
                         engine_.clocks());
    }
    p.epoch_sums = sums_from(root["epoch_sums"]);
    agreed_ = true;
}

void Recovery::take_up() {
    if (!engine_.trainer) engine_.build();
    progress_.commit();
    folder_.log.commit();
    checked_step_ = progress_.at.step + 1 - config_.check_every;  // after the next step
    drift_ = false;
}

// ---- equal weights ------------------------------------------------------------------------------

void Recovery::check_weights(bool met, bool now) {
    const int64_t since = progress_.at.step - checked_step_;
    if (config_.check_every == 0 || drift_ || !engine_.sync().twins(met)) return;
    if (since >= config_.check_every || (now && since > 0)) compare_weights();
}

// Sums over the ring have the same bits on every rank. Gradients that each rank computes from
// factors have too, unless the machines' kernels add in another order: then weights drift apart by
// roundings.
void Recovery::compare_weights() {
    checked_step_ = progress_.at.step;
    const Sync::Twins twins = *engine_.sync().twins(/*met=*/true);
    if (twins.communicator.world() == 1) return;
    Difference found = take_from(0, std::vector<bool>(size_t(twins.communicator.world()), true),
                                 engine_.model->params(), engine_.optimizer->arenas(),
                                 *engine_.backend, twins.communicator);
    if (found.ranks.empty()) return;
    for (int& rank : found.ranks) rank = rank * twins.stride + twins.first;
    engine_.sync().changed();
    tell_unequal(found, twins.first, progress_.at.step);
}

void Recovery::tell_unequal(const Difference& found, int root, int64_t step) {
    drift_ = engine_.may_drift;
    std::vector<int> numbers;
    for (const int rank : found.ranks) numbers.push_back(setup_.job.number(rank));
    log_.notice(
        "after step ", step, numbers.size() > 1 ? " ranks " : " rank ", ranges_text(numbers),
        " held other weights than rank ", setup_.job.number(root), "; all ranks have its weights",
        " now. The first tensor that differed was ", found.tensor, ". ",
        drift_ ? "Processors that add in another order differ by roundings; CONVOY_FACTORS=off "
                 "keeps all equal"
               : "Data was damaged in a memory or on its way; a token (--token-file) protects the "
                 "way");
    folder_.log.event(
        "unequal",
        {{"step", step}, {"ranks", found.ranks}, {"root", root}, {"tensor", found.tensor}});
}

}  // namespace convoy
