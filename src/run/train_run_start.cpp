// train_run_start.cpp — before step 1: start weights, and what is printed about the run.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/order.h"
#include "data/storage.h"
#include "src/base/check.h"
#include "src/base/text.h"
#include "src/checkpoint/torch_file.h"
#include "src/checkpoint/weights.h"
#include "src/run/train_run.h"

namespace convoy {

void TrainRun::start_weights() {
    if (setup_.resumed) {
        const CheckpointMeta& meta = setup_.resumed->meta;
        const bool parts = (meta.order + setup_.order).find(" mine ") != std::string::npos;
        const bool other_images = meta.data_fingerprint != setup_.fingerprint && !parts;
        restore(*setup_.resumed, *model_, *optimizer_, *backend_);
        at_ = meta.position;
        if (setup_.data.train->is_stream()) {
            log_.notice("a pipe cannot be wound back: the run goes on at the beginning of epoch ",
                        at_.epoch + 1, ", with what the pipe brings first");
            at_.consumed = 0;
        } else if (other_images) {
            log_.notice("the training set is not that of ", setup_.resumed->folder, ": epoch ",
                        at_.epoch + 1, " begins", at_.consumed > 0 ? " again" : "", " with the ",
                        setup_.data.train->size(), " images of now");
            at_.consumed = 0;
        } else if (at_.consumed > 0 && meta.order != setup_.order) {
            log_.notice("epoch ", at_.epoch + 1, " begins again: the checkpoint is ", at_.consumed,
                        " images into it, in the order ",
                        meta.order.empty() ? "of an older version" : "'" + meta.order + "'",
                        "; the order is '", setup_.order, "' now");
            at_.consumed = 0;
        }
        peak_top1_ = meta.peak_top1, stale_ = meta.stale;
        spent_before_ = meta.spent;
        // A new --out folder holds no best checkpoint yet.
        best_top1_ = std::filesystem::exists(folder_ + "/best") ? meta.best_top1 : -1;
        std::error_code none;
        const auto resumed = std::filesystem::absolute(setup_.resumed->folder);
        if (std::filesystem::equivalent(folder_, resumed.parent_path(), none))
            saved_step_ = at_.step;
        log_.info("resumed from ", setup_.resumed->folder, ": epoch ", at_.epoch + 1, ", ",
                  at_.consumed, " images into it, step ", at_.step);
        setup_.resumed.reset();
    } else if (!config_.init.empty() && setup_.rank() == 0) {
        const ImportReport report =
            import_weights(read_weights(config_.init, log_), *model_, *backend_, /*partial=*/true);
        log_.notice("weights from ", config_.init, ": ", report.text());
    }
    const bool has_state = setup_.rank() == 0 || (setup_.fresh && !setup_.job.is_newcomer());
    if (!has_state) at_.step = -1;  // see agree()
    go_to(at_);
}

// The steps that are left of this epoch, and those of the epochs after it.
void TrainRun::count_steps() {
    const int64_t epochs_after = config_.epochs - at_.epoch - 1;
    if (config_.steps > 0)
        total_steps_ = config_.steps;
    else if (epochs_after < 0)
        total_steps_ = at_.step;
    else
        total_steps_ = at_.step + loader_->steps(at_.consumed) + epochs_after * steps_per_epoch_;
}

void TrainRun::print_start() const {
    print_settings();
    print_advice();
    std::string table = model_->table();
    while (table.ends_with('\n')) table.pop_back();
    log_.info(table);
    if (setup_.world() > 1) print_ranks();
}

void TrainRun::print_settings() const {
    const int world = setup_.world();
    const auto row = [&](const char* name, const auto&... parts) {
        log_.info(fmt::format("  {:<10} ", name), parts...);
    };
    log_.info("Convoy: training ", config_.model, " on ", setup_.classes.size(), " classes");
    row("data", setup_.data.description);
    row("classes", join_text(setup_.classes));
    row("model", config_.model, ", input ", input_size_text(model_->input()), ", ",
        count_text(double(model_->params().model_elems())), " parameters, ",
        fmt::format("{:.2f} GFLOP forward an image", model_->forward_flops() / 1e9));
    row("device", backend_->description());
    row("memory", memory_text());
    if (decoded_bytes_ > 0)
        row("decoded", fmt::format("about {:.1f} MB of images on each rank, of which {:.1f} MB are "
                                   "kept after their first use",
                                   double(decoded_bytes_) / 1e6,
                                   std::min(double(decoded_bytes_), double(*room_)) / 1e6));
    row("threads", backend_->threads(), " compute, ", sharing_.threads, " decode",
        config_.replicas > 1 ? cat("; ", config_.replicas, " replicas of ",
                                   counted(replica_backends_[0]->threads(), "thread"))
                             : "");
    row("batch", config_.batch, " images a step over ", counted(world, "rank"), ", ",
        steps_per_epoch_, " steps an epoch, ", total_steps_, " in all",
        config_.accumulate * config_.replicas > 1 ? cat(", in pieces of ", model_->planned()) : "");
    row("optimizer", get_option(config_, "optimizer"),
        fmt::format(", lr {:g} for the global batch, ", base_lr_), get_option(config_, "schedule"),
        config_.schedule == Schedule::kOneCycle
            ? " schedule"
            : fmt::format(" schedule, {:g} epochs of warm-up", config_.warmup),
        config_.ema > 0 ? fmt::format(", weights averaged with {:g}", config_.ema) : "");
    if (sharing_.window > 0 && !loader_->is_stream())
        row("shuffle", counted(setup_.data.train->shard_sizes().size(), "shard"),
            " in another order each epoch, then among ", sharing_.window, " images of ",
            setup_.data.train->size());
    row("augment", get_option(config_, "augment"));
    row("seed", config_.seed);
    row("output", folder_);
    if (const int asked =
            piece_images(model_->max_batch(), config_.accumulate * config_.replicas, 0);
        config_.pipeline == 1 && model_->planned() > asked)
        log_.notice("pieces of ", model_->planned(), " images in place of ", asked,
                    ": they are not cut within groups of batch norm; a smaller --bn-group helps");
    if (const std::string why = why_no_graph(*backend_, world);
        config_.graph == GraphMode::kOn && !why.empty())
        log_.notice("CONVOY_GRAPH=on: steps run op by op nevertheless, ", why);
}

// At the start of a run from scratch on the user's own images.
void TrainRun::print_advice() const {
    if (config_.data.empty() || !config_.init.empty() || at_.step > 0 ||
        config_.schedule == Schedule::kRange)
        return;
    const bool is_given = setup_.job.line.given.contains("model");
    if (!is_given)
        log_.info("no --model was given: ", config_.model, " at ", input_size_text(model_->input()),
                  " trains; for photos try --model resnet18");
    if (const size_t images = setup_.data.train->size();
        images < 2000 && !setup_.data.train->is_stream())
        log_.info(images, " images are few to begin from nothing. Better: trainer finetune ",
                  is_given && config_.model != "tiny" ? config_.model : "resnet18", ".pth --data ",
                  public_name(config_.data), " (src/model/README.md: where to get weights)");
}

// How the linear layers' gradients travel; empty where only a ring could send factors.
std::vector<FactorChoice> TrainRun::factor_choices() const {
    if (config_.sync_every > 1 || config_.sync != SyncKind::kRing || config_.pipeline > 1)
        return {};
    return choose_factors(model_->params(), config_.batch, {setup_.world(), communicator_.around()},
                          config_.factors);
}

std::string TrainRun::memory_text() const {
    const Params& params = model_->params();
    const auto mb = [](size_t floats) { return double(floats) * sizeof(float) / 1e6; };
    std::string text =
        fmt::format("{:.0f} MB activations, {:.0f} MB weights, gradients and optimizer",
                    double(activation_bytes_) / 1e6,
                    mb(params.weights_size + params.grads_size +
                       optimizer_->state().size() * params.state_size) +
                        double(params.copies_bytes()) / 1e6);
    size_t factors = 0;
    for (const FactorChoice& layer : factor_choices())
        if (layer.use)
            factors +=
                size_t(config_.batch) * (layer.w->shape.row_elems() + size_t(layer.w->shape.N));
    if (params.copies_bytes() > 0) factors += factors / 2;  // bf16 copies as well
    if (factors > 0) text += fmt::format(", {:.0f} MB factors of all ranks", mb(factors));
    if (config_.sync_every > 1 && setup_.world() > 1)
        text += fmt::format(", {:.0f} MB of the last average", mb(averaged_floats()));
    return text;
}

size_t TrainRun::averaged_floats() const {
    const Params& params = model_->params();
    return params.updated_size + optimizer_->inner().size() * params.state_size;
}

std::string TrainRun::server_text() const {
    const int W = setup_.world(), S = config_.servers;
    const double mb = 4e-6 * double(model_->params().updated_size);
    std::string text =
        fmt::format("{} of {} ranks {}; a rank sends {:.2f} MB of gradients a step", S, W,
                    S == 1 ? "serves" : "serve", mb * (S == W ? double(W - 1) / W : 1));
    if (S < W) text += fmt::format(", one that serves {:.2f}", mb * (S - 1) / S);
    text += fmt::format(", and each server {:.2f} MB of weights (a ring: {:.2f} MB)",
                        mb * (W - 1) / S, 2 * mb * (W - 1) / W);
    if (config_.sync == SyncKind::kAsync)
        text += "; steps a rank may be ahead: " + config_.staleness;
    if (communicator_.min_world() > 0)
        text += "; when a rank is lost the others go back to the last checkpoint or epoch";
    return text;
}

std::string TrainRun::traffic() const {
    const Params& params = model_->params();
    const bool bf16 = config_.wire == WireType::kBf16;
    if (config_.sync != SyncKind::kRing) return server_text();
    if (config_.pipeline > 1)
        return setup_.stages_text +
               "; a lost rank ends the job: --elastic does not work with pipelines";
    if (config_.sync_every == 1)
        return traffic_text(params, factor_choices(), {setup_.world(), communicator_.around()},
                            bf16);
    const size_t floats = averaged_floats();
    const int around = communicator_.around();
    const double mb = 2.0 * (around - 1) / around * double(floats) * (bf16 ? 2e-6 : 4e-6);
    std::string text = fmt::format(
        "weights and optimizer state averaged every {} steps: {:.2f} MB a rank and step, for "
        "gradients it would be {:.2f}",
        config_.sync_every, mb / config_.sync_every,
        mb * double(params.grads_size) / double(floats));
    if (config_.outer != OuterKind::kOff)
        text += fmt::format("; DiLoCo, lr {:g}, momentum {:g}", config_.outer_lr,
                            config_.outer_momentum);
    return text;
}

void TrainRun::print_ranks() const {
    log_.info("  network    ", traffic());
    log_.info("rank  share  address                host");
    const std::vector<double>& shares = setup_.shares.weights;
    for (const Peer& peer : setup_.job.peers())
        log_.info(fmt::format("{:>4}  {:>5g}  {:<21}  {}", peer.rank, shares[size_t(peer.rank)],
                              peer.address, peer.host));
    if (!link_.empty()) log_.info(link_);
    if (const std::string cuts = split_groups(); !cuts.empty()) log_.info(cuts);
}

// Where shares split groups of batch norm, whose statistics differ then from one rank's.
std::string TrainRun::split_groups() const {
    if (config_.bn_group == 0 || !model_->has_batch_norm() || !sharing_.parts.empty()) return "";
    const auto cuts_of = [&](int64_t images) {
        const auto group = [&](int64_t i) { return part_of(i, images, config_.bn_group); };
        std::vector<std::string> cuts;
        for (int rank = 0; rank + 1 < setup_.world(); ++rank)
            if (const int64_t cut = share_of(images, setup_.shares.weights, rank).end;
                cut > 0 && cut < images && group(cut - 1) == group(cut))
                cuts.push_back(std::to_string(cut));
        return cuts;
    };
    std::vector<std::string> cuts = cuts_of(config_.batch);
    const bool only_last = cuts.empty();
    if (only_last) cuts = cuts_of(loader_->samples() % config_.batch);
    if (cuts.empty()) return "";
    return cat(
        "batch norm: shares end at image ", join_text(cuts, " and "), " of ",
        only_last ? "the last batch of an epoch" : "a batch", " and split groups of ",
        config_.bn_group,
        ", whose statistics are taken over smaller ones: losses are not quite those of other "
        "shares");
}

}  // namespace convoy
