// train_run_join.cpp — ranks come into a run that trains, and nobody waits for them.
//
//   newcomer  warm_up ─► go_on ─► meet_newcomers ─► steps without images: pass_slice ─► cut_anew
//   others         part ─► go_on ─► meet_newcomers ─► steps as before: pass_slice     ─► cut_anew
//
// Models, and the batches that are prefetched, stay as they are. Where they cannot, all copy the
// state at once and build anew (train_run_again.cpp).
#include <nlohmann/json.hpp>

#include "data/order.h"
#include "src/base/check.h"
#include "src/base/text.h"
#include "src/run/train_run.h"
#include "src/train/random_batch.h"

namespace convoy {

using nlohmann::json;

// For slices: how much longer a step may take, and their part of the time in which the ring idles.
constexpr double kSlowdown = 0.03, kOfIdle = 0.25;

// Whether what build() made can be of use in another ring. A device that trained alone has recorded
// its steps, without sums.
bool TrainRun::can_stay() const {
    return config_.sync == SyncKind::kRing && config_.sync_every == 1 && config_.pipeline == 1 &&
           sharing_.parts.empty() && (backend_->host_visible() || setup_.world() > 1);
}

// A newcomer's first step touches all of this machine's memory that it has, and takes long: here
// nobody waits for it. The weights stay; what else changes, others replace.
void TrainRun::warm_up() {
    TrainerOptions options(config_);
    options.graph = GraphMode::kOff;
    options.replicas = replica_backends_;
    const auto alone = make_single_rank();
    Trainer trainer(options, *backend_, *alone, *model_, *optimizer_, [] { return 0; });
    const double shares[] = {1};
    trainer.step(random_batch(*backend_, model_->planned(), shares, 0, model_->input(),
                              int(setup_.classes.size()), uint64_t(config_.seed)),
                 {}, /*lr=*/0);
}

// Whether ranks have only come, and all train on with the models that they have.
bool TrainRun::fit_as_they_are(const std::vector<json>& all, const json& root) const {
    const auto is_new = [](const json& one) { return one["step"] < 0; };
    const auto news = std::ranges::count_if(all, is_new);
    if (news == 0 || std::ssize(all) - news < std::max(communicator_.min_world(), 1)) return false;
    LoaderOptions options = sharing_, meanwhile = sharing_;
    options.shares = meanwhile.shares = setup_.shares.weights;
    for (size_t rank = 0; rank < all.size(); ++rank)
        if (is_new(all[rank])) meanwhile.shares[rank] = 0;
    if (std::ranges::count(meanwhile.shares, 0) == std::ssize(all)) return false;
    for (options.rank = 0; size_t(options.rank) < all.size(); ++options.rank) {
        const json& one = all[size_t(options.rank)];
        if (one["head_only"] || one["trace"] || one["sizes"] != root["sizes"]) return false;
        if (!is_new(one) && (one["step"] != root["step"] || one["epoch"] != root["epoch"]))
            return false;
        const int64_t images = one["images"];
        meanwhile.rank = options.rank;
        for (const LoaderOptions& of : {options, meanwhile}) {
            if (most_images(of.batch, of.shares, of.rank) < images) continue;  // quick to find
            if (Loader::max_share(of) > images) return false;
        }
    }
    return true;
}

// How long the ring may be busy with a slice.
double TrainRun::slice_seconds() const {
    if (!trainer_) return 0;
    const Clocks now = clocks();
    const double steps = double(std::max<int64_t>(at_.step - pace_step_, 1));
    const double step = (now.compute - pace_.compute + now.net_wait - pace_.net_wait) / steps;
    const double idle = std::max(0.0, step - (now.net_busy - pace_.net_busy) / steps);
    return kSlowdown * step + kOfIdle * idle;
}

void TrainRun::meet_newcomers(const std::vector<json>& all, const json& root) {
    std::vector<int> newcomers;
    double first = 1e9;
    for (size_t rank = 0; rank < all.size(); ++rank)
        if (all[rank]["step"] < 0)
            newcomers.push_back(int(rank));
        else
            first = std::min(first, all[rank]["slice"].get<double>());
    slices_ = std::make_unique<StateSlices>(model_->params(), *optimizer_, *backend_, communicator_,
                                            newcomers, slice_seconds(), size_t(first));
    communicator_.set_listeners(newcomers);
    follow(root);
    optimizer_->steps_done = root["optimizer"];
    cut_anew();
    trainer_->sync().ring_changed();
    go_to(at_);
    drift_ = false;
}

bool TrainRun::lacks_state() const { return slices_ && slices_->is_newcomer(setup_.rank()); }

// Before a step, while newcomers lack the state.
void TrainRun::pass_slice() {
    if (slices_->pass()) return;
    const double bytes = slices_->bytes();
    const int slices = slices_->slices();
    slices_.reset();
    communicator_.set_listeners({});
    keep_weights_equal();
    cut_anew();
    log_.info("newcomers have weights and optimizer state after step ", at_.step,
              fmt::format(" ({:.1f} MB in ", bytes / 1e6), counted(size_t(slices), "slice"),
              "), and images within ", kSlots + 1, " steps");
    run_log_->event("state", {{"step", at_.step}, {"bytes", bytes}, {"slices", slices}});
}

// The model and its batches stay, but for their sizes.
void TrainRun::cut_anew() {
    sharing_.shares = shares_now(), sharing_.rank = setup_.rank();
    loader_->cut_anew(sharing_.shares, sharing_.rank);
    if (val_loader_) val_loader_->cut_anew(sharing_.shares, sharing_.rank);
}

// A newcomer has none until it has the state.
std::vector<double> TrainRun::shares_now() const {
    std::vector<double> shares = setup_.shares.weights;
    for (size_t rank = 0; slices_ && rank < shares.size(); ++rank)
        if (slices_->is_newcomer(int(rank))) shares[rank] = 0;
    return shares;
}

}  // namespace convoy
