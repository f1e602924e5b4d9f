#include "src/run/run_start.h"

#include "data/order.h"
#include "src/base/check.h"
#include "src/base/text.h"
#include "src/train/factors.h"
#include "src/train/step_graph.h"

namespace convoy {

static std::string row(const char* name, const std::string& value) {
    return fmt::format("  {:<10} {}", name, value);
}

// The linear layers' ways of sending; none with --sync-every, where no gradient travels.
static std::vector<FactorChoice> factor_choices(const RunStart& start) {
    const Config& config = start.setup.config;
    if (config.sync_every > 1) return {};
    return choose_factors(start.model.params(), config.batch, start.setup.world(),
                          parse_factor_mode(config.factors));
}

static std::string memory_text(const RunStart& start) {
    const Params& params = start.model.params();
    const auto mb = [](size_t floats) { return double(floats) * sizeof(float) / 1e6; };
    std::string text =
        fmt::format("{:.0f} MB activations, {:.0f} MB weights, gradients and optimizer",
                    double(start.activation_bytes) / 1e6,
                    mb(params.weights_size + params.grads_size +
                       start.optimizer.state().size() * params.trained_size) +
                        double(params.copies_bytes()) / 1e6);
    size_t factors = 0;
    for (const FactorChoice& layer : factor_choices(start))
        if (layer.use)
            factors += size_t(start.setup.config.batch) *
                       (layer.w->shape.row_elems() + size_t(layer.w->shape.N));
    if (params.copies_bytes() > 0) factors += factors / 2;  // bf16 copies as well
    if (factors > 0) text += fmt::format(", {:.0f} MB factors of all ranks", mb(factors));
    if (start.setup.config.sync_every > 1 && start.setup.world() > 1)
        text += fmt::format(", {:.0f} MB weights as last averaged", mb(params.updated_size));
    return text;
}

static void print_settings(const RunStart& start, Log& log) {
    const Config& config = start.setup.config;
    const Params& params = start.model.params();
    const int world = start.setup.world();
    log.info("Convoy: training ", config.model, " on ", start.setup.classes.size(), " classes");
    log.info(row("data", start.setup.data.description));
    log.info(row("classes", join_text(start.setup.classes)));
    log.info(row("model", cat(config.model, ", input ", start.model.size(), "x", start.model.size(),
                              ", ", count_text(double(params.model_elems())), " parameters, ",
                              fmt::format("{:.2f} GFLOP forward an image",
                                          start.model.forward_flops() / 1e9))));
    log.info(row("device", start.backend.description()));
    log.info(row("memory", memory_text(start)));
    log.info(row("threads",
                 cat(start.backend.threads(), " compute, ", start.decode_threads, " decode")));
    log.info(row("batch", cat(config.batch, " images a step over ", world,
                              world == 1 ? " rank, " : " ranks, ", start.steps_per_epoch,
                              " steps an epoch, ", start.total_steps, " in all")));
    log.info(row("optimizer",
                 fmt::format("{}, lr {:g} for the global batch, {} schedule, {:g} epochs of "
                             "warm-up",
                             config.optimizer, start.base_lr, config.schedule, config.warmup)));
    log.info(
        row("augment", cat(config.augment, augments_on_device(config) ? ", on the device" : "")));
    log.info(row("seed", cat(config.seed)));
    log.info(row("output", start.folder));
    if (const std::string why = why_no_graph(start.backend, world);
        config.graph == "on" && !why.empty())
        log.notice("--graph on: steps run op by op nevertheless, ", why);
}

static std::string network_text(const RunStart& start) {
    const Config& config = start.setup.config;
    if (config.sync_every > 1)
        return cat("weights and optimizer state averaged every ", config.sync_every,
                   " steps; no gradient travels");
    return traffic_text(start.model.params(), factor_choices(start), start.setup.world(),
                        config.wire == "bf16");
}

static void print_ranks(const RunStart& start, Log& log) {
    log.info(row("network", network_text(start)));
    log.info("rank  share  address                host");
    for (const Peer& peer : start.setup.job.peers)
        log.info(fmt::format("{:>4}  {:>5g}  {:<21}  {}", peer.rank,
                             start.setup.shares.weights[size_t(peer.rank)], peer.address,
                             peer.host));
    for (const std::string& line : start.expectations) log.info(line);
    const Config& config = start.setup.config;
    if (config.bn_group == 0 || !start.model.has_batch_norm()) return;
    for (int rank = 0; rank + 1 < start.setup.world(); ++rank) {
        const int64_t cut = share_of(config.batch, start.setup.shares.weights, rank).end;
        if (cut % config.bn_group != 0)
            log.info("batch norm: the cut between rank ", rank, " and ", rank + 1, " at image ",
                     cut, " splits a group of ", config.bn_group,
                     "; its statistics are taken over two smaller ones");
    }
}

void print_start(const RunStart& start, Log& log) {
    print_settings(start, log);
    std::string table = start.model.table();
    while (table.ends_with('\n')) table.pop_back();
    log.info(table);
    if (start.setup.world() > 1) print_ranks(start, log);
}

}  // namespace convoy
