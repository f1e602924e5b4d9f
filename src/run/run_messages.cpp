#include "src/run/run_messages.h"

#include <cerrno>
#include <nlohmann/json.hpp>
#include <numeric>

#include "data/order.h"
#include "data/sources/storage.h"
#include "src/base/text.h"

namespace convoy {

RunMessages::RunMessages(const RunPart& run) : RunPart(run) {
    folder_.log.print_events(config_.json);
    if (config_.page.empty()) return;
    page_address(config_.page);  // a mistake in it ends the run here
    folder_.log.show_on(&page_state_);
}

void RunMessages::begin(double base_lr) {
    new_ring();
    if (setup_.rank() == 0) {
        print_settings(base_lr);
        print_advice();
        std::string table = engine_.model->table();
        while (table.ends_with('\n')) table.pop_back();
        log_.info(table);
        if (setup_.world() > 1) print_ranks();
    }
    serve_page();
    if (const int64_t last = trace_steps(config_.trace).last;
        !folder_.path().empty() && last > 0 && progress_.at.step >= last)
        log_.notice("--trace ", config_.trace, ": no trace, the run begins after step ",
                    progress_.at.step);
    const int64_t total = progress_.total_steps, per_epoch = progress_.steps_per_epoch;
    folder_.log.plan(config_.steps > 0 ? (total + per_epoch - 1) / per_epoch : config_.epochs,
                     per_epoch, total, progress_.at.step, engine_.clocks());
    folder_.log.event("start", public_settings(config_));
    log_job();
    usage_.emplace(setup_.job, engine_.clocks());
}

// The length of the job and its ranks, as they are from now on.
void RunMessages::log_job() {
    nlohmann::json ranks;
    for (int rank = 0; rank < setup_.world(); ++rank)
        ranks.push_back({{"share", setup_.shares.weights[size_t(rank)]}});
    for (size_t rank = 0; const Peer& peer : setup_.job.peers())
        ranks[rank++].update({{"address", peer.address}, {"host", peer.host}});
    folder_.log.event("job", {{"epoch", progress_.at.epoch},
                              {"step", progress_.at.step},
                              {"epochs", config_.steps > 0 ? 0 : config_.epochs},
                              {"steps", progress_.total_steps},
                              {"ranks", ranks}});
}

// With --page, on rank 0 or the rank that has taken over. A port that is taken costs the page, not
// the run.
void RunMessages::serve_page() {
    if (config_.page.empty() || setup_.rank() != 0 || page_) return;
    try {
        page_ = convoy::serve_page(config_.page, page_state_);
        log_.notice("page: ", url_of(*page_));
    } catch (const Error& error) {
        log_.notice(error.what(), ". The run goes on without it");
    }
}

void RunMessages::rewind() {
    folder_.log.rewind();
    if (usage_) usage_->forget();
}

void RunMessages::new_ring() {
    if (progress_.at.step > pace_step_ || !usage_)
        pace_ = engine_.clocks(), pace_step_ = progress_.at.step;
    if (const std::string cuts = split_groups(); usage_ && !cuts.empty() && setup_.rank() == 0)
        log_.notice(cuts);
    if (usage_) log_job(), serve_page();
}

void RunMessages::step(const StepResult& result, double lr) {
    for (const std::string& reason : engine_.loader->take_bad_reasons())
        log_.notice("left out: ", reason);
    folder_.log.step(progress_.at, progress_.step_in_epoch(config_), result.sums, !result.of_all,
                     lr, engine_.clocks(), engine_.trainer->gradient_norm());
    if (!result.met) return;
    if (const auto figures = engine_.sync().measured(); !figures.empty())
        folder_.log.event("sync", {{"step", progress_.at.step}, {"figures", figures}});
}

void RunMessages::after_step(const StepResult& result) {
    if (!config_.page.empty() && result.of_all && progress_.at.step >= usage_->next_step())
        tell_usage();
    if (progress_.at.step % config_.log_every == 0) usage_->read();
    advise();
}

void RunMessages::tell_usage() {
    const nlohmann::json ranks = usage_->tell(progress_.at.step, engine_.clocks(), progress_.spent);
    if (!ranks.is_null())
        folder_.log.event("utilisation", {{"step", progress_.at.step}, {"ranks", ranks}});
}

// Once, when some steps have shown how long ranks compute and how long they wait.
void RunMessages::advise() {
    if (is_advised_ || setup_.world() == 1 || !engine_.sync().could_average()) return;
    const Clocks now = engine_.clocks();
    const double own = now.compute + now.data_wait - pace_.compute - pace_.data_wait;
    const double waited = now.net_wait - pace_.net_wait;
    const int64_t steps = progress_.at.step - pace_step_;
    if (steps < 20 || own + waited < 2) return;
    is_advised_ = true;
    const std::vector<double>& shares = setup_.shares.weights;
    const double part = shares[0] / std::accumulate(shares.begin(), shares.end(), 0.0);
    const std::string text = advice_of_network(own, waited, double(steps * config_.batch), part);
    if (!text.empty() && setup_.rank() == 0) log_.notice(text);
}

void RunMessages::done() {
    const Position& at = progress_.at;
    std::string costs = setup_.rank() == 0 ? usage_->text() : "";
    if (const std::string money = cost_text(progress_.spent); !costs.empty() && !money.empty())
        costs += "\n" + money;
    const bool has_enough = progress_.has_enough(config_);
    folder_.log.done(at,
                     progress_.stopped ? cat("signal ", progress_.stopped)
                     : has_enough      ? "stopped early"
                                       : "finished",
                     progress_.spent);
    if (progress_.stopped) {
        if (!costs.empty()) log_.info(costs);
        log_.notice(
            "stopped by signal ", progress_.stopped, " after step ", at.step,
            setup_.rank() == 0 && config_.schedule != Schedule::kRange
                ? cat("; to continue: ", program_invocation_name, " --resume ", folder_.path())
                : "");
        return;
    }
    std::string text = cat("done: ", at.step, " steps");
    if (setup_.rank() == 0) {
        text += fmt::format(" in {}, {:.1f} img/s", clock_text(folder_.log.seconds()),
                            folder_.log.images_per_second());
        if (progress_.last_val.count > 0)
            text += fmt::format(", validation top1 {:.2f} % (best {:.2f} %)",
                                100 * progress_.last_val.top1_part(), 100 * progress_.peak_top1);
        if (progress_.diverges)
            text += "; the loss has grown to four times its least";
        else if (has_enough)
            text += cat("; --early-stop: ", progress_.stale, " validations without a better one");
        if (!costs.empty()) text += "\n" + costs;
        if (config_.schedule != Schedule::kRange && !folder_.path().empty())
            text += cat("\nmodel: ", find_model_file(folder_.path(), log_),
                        "   try: ", program_invocation_name, " predict --from ", folder_.path(),
                        " IMAGE");
    }
    // The result is printed with --quiet, too; with --json it is an event.
    setup_.rank() > 0 || config_.json ? log_.info(text) : log_.notice(text);
}

// ---- the start ----------------------------------------------------------------------------------

void RunMessages::print_settings(double base_lr) const {
    Model& model = *engine_.model;
    const int world = setup_.world();
    const auto row = [&](const char* name, const auto&... parts) {
        log_.info(fmt::format("  {:<10} ", name), parts...);
    };
    log_.info("Convoy: training ", config_.model, " on ", setup_.model.classes.size(), " classes");
    row("data", setup_.data.description);
    row("classes", join_text(setup_.model.classes));
    row("model", config_.model, ", input ", input_size_text(model.input()), ", ",
        count_text(double(model.params().model_elems)), " parameters, ",
        fmt::format("{:.2f} GFLOP forward an image", model.forward_flops() / 1e9));
    row("device", engine_.backend->description());
    row("memory", engine_.memory_text());
    if (const int64_t all = engine_.images.decoded_bytes; all > 0)
        row("decoded", "about ", bytes_text(double(all)), " of images on each rank, of which ",
            bytes_text(double(std::min<int64_t>(all, *engine_.images.room))),
            " are kept after their first use");
    row("threads", engine_.backend->threads(), " compute, ", engine_.sharing.threads, " decode",
        config_.replicas > 1
            ? cat("; ", config_.replicas, " replicas of ",
                  counted(size_t(engine_.backend->threads() / config_.replicas), "thread"))
            : "");
    row("batch", config_.batch, " images a step over ", counted(world, "rank"), ", ",
        progress_.steps_per_epoch, " steps an epoch, ", progress_.total_steps, " in all",
        config_.accumulate * config_.replicas > 1 ? cat(", in micro-batches of ", model.planned())
                                                  : "");
    row("optimizer", get_option(config_, "optimizer"),
        fmt::format(", lr {:g} for the global batch, ", base_lr), get_option(config_, "schedule"),
        config_.schedule == Schedule::kOneCycle
            ? " schedule"
            : fmt::format(" schedule, {:g} epochs of warm-up", config_.warmup),
        config_.ema > 0 ? fmt::format(", weights averaged with {:g}", config_.ema) : "");
    if (engine_.sharing.window > 0)
        row("shuffle", counted(setup_.data.train->shard_sizes().size(), "shard"),
            " in another order each epoch, then among ", engine_.sharing.window, " images of ",
            setup_.data.train->size());
    row("augment", get_option(config_, "augment"));
    row("seed", config_.seed);
    row("output", folder_.path());
    if (const int asked =
            micro_batch_images(model.max_batch(), config_.accumulate * config_.replicas, 0);
        model.planned() > asked)
        log_.notice("micro-batches of ", model.planned(), " images instead of ", asked,
                    ", because they are not cut within groups of batch norm; a smaller --bn-group "
                    "helps");
    if (const std::string why = why_no_graph(*engine_.backend, world);
        config_.graph == GraphMode::kOn && !why.empty())
        log_.notice("CONVOY_GRAPH=on: steps run op by op nevertheless, ", why);
}

// At the start of a run from scratch on the user's own images.
void RunMessages::print_advice() const {
    if (config_.data.empty() || !config_.init.empty() || progress_.at.step > 0 ||
        config_.schedule == Schedule::kRange)
        return;
    const bool is_given = setup_.job.line.given.contains("model");
    if (!is_given)
        log_.info("no --model was given: ", config_.model, " at ",
                  input_size_text(engine_.model->input()),
                  " trains; for photos try --model resnet18");
    if (const size_t images = setup_.data.train->size(); images < 2000)
        log_.info(images, " images are few to begin from nothing. Better: trainer finetune ",
                  is_given && config_.model != "tiny" ? config_.model : "resnet18", ".pth --data ",
                  public_name(config_.data), " (src/model/README.md: where to get weights)");
}

void RunMessages::print_ranks() const {
    if (!setup_.stages_text.empty()) log_.info("  ", setup_.stages_text);
    log_.info("  network    ", engine_.sync().traffic());
    log_.info("rank  share  address                host");
    const std::vector<double>& shares = setup_.shares.weights;
    const std::vector<Peer>& peers = setup_.job.peers();
    for (size_t first = 0, next = 0; first < peers.size(); first = next) {
        // Of many ranks, those of one host that have the same share are one row.
        for (++next; peers.size() > 8 && next < peers.size() && shares[next] == shares[first] &&
                     peers[next].host == peers[first].host;)
            ++next;
        const std::string last = next - first > 1 ? cat("-", peers[next - 1].number) : "";
        log_.info(fmt::format("{:>4}  {:>5g}  {:<21}  {}", cat(peers[first].number, last),
                              shares[first], peers[first].address, peers[first].host));
    }
    if (!setup_.link_text.empty()) log_.info(setup_.link_text);
    if (const std::string cuts = split_groups(); !cuts.empty()) log_.info(cuts);
}

// Where shares split groups of batch norm, whose statistics differ then from one rank's.
std::string RunMessages::split_groups() const {
    if (config_.bn_group == 0 || !engine_.model->has_batch_norm() || !engine_.sharing.parts.empty())
        return "";
    const std::vector<double>& shares = engine_.sharing.shares;  // of ranks, or of pipelines
    const auto splits = [&](int64_t images) {
        const auto group = [&](int64_t i) { return part_of(i, images, config_.bn_group); };
        for (int i = 0; i + 1 < std::ssize(shares); ++i)
            if (const int64_t cut = share_of(images, shares, i).end;
                cut > 0 && cut < images && group(cut - 1) == group(cut))
                return true;
        return false;
    };
    const bool every = splits(config_.batch);
    if (!every && !splits(engine_.loader->samples() % config_.batch)) return "";
    const bool is_equal = std::ranges::count(shares, shares[0]) == std::ssize(shares);
    return cat(
        "batch norm: ", every ? "" : "in the last batch of an epoch, ",
        "the share of a rank ends inside a group of ", config_.bn_group,
        " images (--bn-group). Each rank then takes the mean and variance of its part of the "
        "group, so the losses differ slightly from those of one rank",
        every && is_equal ? cat("; --batch ", config_.bn_group * shares.size(), " avoids this")
                          : "");
}

}  // namespace convoy
