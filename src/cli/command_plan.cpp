// command_plan.cpp — tune --plan: before a job starts, how fast will it be, and with which options?
#include <algorithm>

#include "src/base/check.h"
#include "src/base/table.h"
#include "src/base/text.h"
#include "src/cli/commands.h"
#include "src/job/device_choice.h"
#include "src/plan/probe.h"

namespace convoy {

namespace {

void print_measured(const JobTiming& timing, const std::vector<Peer>& peers,
                    const std::vector<double>& shares, bool json) {
    Table links(json), ranks(json);
    for (const EdgeTiming& edge : timing.edges)
        links.row({{"plan", "edge"},
                   {"from", edge.from, "from"},
                   {"to", edge.to, "to"},
                   {"latency_ms", 1e3 * edge.latency_seconds, "latency", "{:.3f} ms"},
                   {"mbit_per_second", mbit_per_second(edge), "Mbit/s", "{:.0f}"}});
    if (!json && !timing.edges.empty())
        fmt::print("buckets of {:.1f} MB\n\n", double(timing.bucket_bytes) / (1 << 20));
    for (size_t rank = 0; rank < timing.ranks.size(); ++rank)
        ranks.row({{"plan", "rank"},
                   {"rank", rank, "rank"},
                   {"threads", timing.ranks[rank].threads, "threads"},
                   {"share", shares[rank], "share", "{:g}"},
                   {"images_per_second", timing.ranks[rank].together, "compute img/s", "{:.1f}"},
                   {"address", rank < peers.size() ? peers[rank].address : "", "address"}});
    if (!json) fmt::print("\n");
}

void print_forecasts(const JobTiming& timing, const Config& config,
                     const std::vector<double>& shares, bool fair) {
    struct Row {
        Forecast forecast;
        std::string options;
    };
    std::vector<Row> rows;
    // The fastest of the ways with the same result as one rank. More ranks, or another format, must
    // be at least 2 % faster.
    size_t best = 0;
    for (int ranks = 1; ranks <= std::ssize(shares); ++ranks) {
        std::vector<double> part(shares.begin(), shares.begin() + ranks);
        if (fair) part = fair_shares(timing, ranks);
        if (std::ranges::max(part) == 0) continue;
        for (const Way& way : kWays) {
            if (ranks == 1 && &way != kWays) break;
            rows.push_back({forecast(timing, way, config.batch, part),
                            cat("--world ", ranks, ranks > 1 ? cat(" ", way.options) : "",
                                fair && ranks > 1 ? " --share " + join_text(part, ":") : "")});
            const auto speed_of = [&](size_t i) { return rows[i].forecast.images_per_second; };
            if (way.every == 1 && speed_of(rows.size() - 1) > 1.02 * speed_of(best))
                best = rows.size() - 1;
        }
    }
    Table table(config.json);
    for (const auto& [one, options] : rows) {
        const bool is_best = &one == &rows[best].forecast;
        table.row({{"plan", "prediction"},
                   {"ranks", one.ranks, "ranks"},
                   {"wire", one.way->bf16 ? "bf16" : "fp32"},
                   {"steps_per_sum", one.way->every},
                   {"", one.ranks == 1 ? "" : one.way->name, "sends", "{:<6}"},
                   {"images_per_second", one.images_per_second, "img/s", "{:.1f}"},
                   {"efficiency", one.efficiency},
                   {"", 100 * one.efficiency, "of compute", "{:.0f} %"},
                   {"step_ms", 1e3 * one.step_seconds},
                   {"best", is_best},
                   {"options", options},
                   {"", is_best ? "best: " + options : "", "", "{:<}"}});
    }
}

int plan_in_job(JobSession& job) {
    job.take_settings_of_rank0();
    Communicator& communicator = job.communicator();
    const Config& config = job.config;
    const std::string text =
        broadcast_text(communicator, job.rank() == 0 ? model_text(config.model) : "");
    const Shares agreed = gather_shares(communicator, config.share, job.log);
    if (config.batch < job.world())
        fail("--batch ", config.batch, " cannot be divided among ", job.world(),
             " ranks: give more");
    choose_device(job);
    const JobTiming timing =
        probe_job(communicator, config, text, class_count(config), agreed.weights,
                  /*brief=*/false, job.log, job.stop);
    const std::vector<double> shares =
        agreed.fair ? fair_shares(timing, job.world()) : agreed.weights;
    job.finish();
    if (job.rank() != 0) return 0;
    print_measured(timing, job.peers(), shares, config.json);
    print_forecasts(timing, config, shares, agreed.fair);
    if (!config.json)
        for (const std::string& warning : plan_warnings(timing, job.peers(), config.batch, shares))
            fmt::print("{}\n", warning);
    return 0;
}

// Also for `tune`, which takes more options than `tune --plan`.
int command_plan(const CommandLine& given, Log& log, const Stop& stop) {
    CommandLine line = given;
    line.command = kPlan;
    return run_in_job(line, log, stop, plan_in_job);
}

}  // namespace

const CommandRow kPlanRow = {
    "tune --plan", kPlan, "[options]",
    "measure links and ranks, and predict the speed of a job for several options", command_plan};

}  // namespace convoy
