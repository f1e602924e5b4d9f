#include "src/plan/plan_report.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/base/table.h"

namespace convoy {

std::vector<PlanChoice> plan_choices(const JobTiming& timing, int64_t batch,
                                     const std::vector<double>& shares, int64_t sync_every,
                                     FactorMode factors) {
    constexpr double kBetter = 1.02;  // less is not worth another setting or another machine
    if (factors == FactorMode::kOff) factors = FactorMode::kAuto;
    const PlanSetting settings[] = {
        {false, FactorMode::kOff}, {true, FactorMode::kOff}, {false, factors}, {true, factors}};
    std::vector<PlanChoice> choices;
    const int world = int(timing.ranks.size());
    for (int ranks = 1; ranks <= world && ranks <= batch; ++ranks) {
        const auto part = shares.empty() ? fair_shares(timings_of(timing, ranks), batch)
                                         : std::vector(shares.begin(), shares.begin() + ranks);
        if (std::ranges::max(part) == 0) continue;
        const bool has_factors =
            sync_every == 1 &&
            any_factors(timing.params, batch, ring_size(link_among(timing, ranks), ranks), factors);
        for (const PlanSetting setting : settings) {
            if (ranks == 1 && setting != PlanSetting{}) continue;
            if (setting.factors != FactorMode::kOff && !has_factors) continue;
            choices.push_back(
                {part, setting, predict(timing, setting, batch, part, sync_every), has_factors});
        }
    }
    ENSURE(!choices.empty(), "nobody has a share");
    PlanChoice* best = &choices[0];
    for (PlanChoice& choice : choices)
        if (choice.prediction.images_per_second > kBetter * best->prediction.images_per_second)
            best = &choice;
    best->best = true;
    return choices;
}

const PlanChoice& best_choice(const std::vector<PlanChoice>& choices) {
    return *std::ranges::find(choices, true, &PlanChoice::best);
}

PlanSetting setting_of(const Config& config, const JobTiming& timing) {
    const bool any = any_factors(timing.params, config.batch,
                                 ring_size(timing.link, int(timing.ranks.size())), config.factors);
    return {config.wire == WireType::kBf16, any ? config.factors : FactorMode::kOff};
}

static const char* wire_text(PlanSetting setting) { return setting.bf16 ? "bf16" : "fp32"; }

std::string setting_text(PlanSetting setting) {
    return cat(wire_text(setting), setting.factors == FactorMode::kOff ? "" : "+factors",
               setting.factors == FactorMode::kOn ? " on" : "");
}

std::string options_text(const PlanChoice& choice, bool with_shares) {
    constexpr const char* kFactors[] = {"auto", "on", "off"};
    std::string text = cat("--world ", choice.ranks());
    if (choice.ranks() > 1) text += cat(" --wire ", wire_text(choice.setting));
    if (choice.has_factors) text += cat(" CONVOY_FACTORS=", kFactors[int(choice.setting.factors)]);
    if (with_shares && choice.ranks() > 1) text += cat(" --share ", shares_text(choice.shares));
    return text;
}

// ---- what stands out --------------------------------------------------------------------------

// Below `part` of the upper quarter of all: a few slow ones are found, while a single one far above
// the rest does not make the rest look slow.
static bool far_below(double value, std::vector<double> all, double part) {
    std::ranges::sort(all, std::greater());
    return value < part * all[all.size() / 4];
}

double mbit_per_second(const EdgeTiming& edge) { return edge.bytes_per_second * 8 / 1e6; }

bool is_slow(const EdgeTiming& edge, const JobTiming& timing) {
    const auto within = [&](const EdgeTiming& e) {
        return timing.ranks[size_t(e.from)].machine == timing.ranks[size_t(e.to)].machine;
    };
    std::vector<double> alike;
    for (const EdgeTiming& other : timing.edges)
        if (within(other) == within(edge)) alike.push_back(other.bytes_per_second);
    return far_below(edge.bytes_per_second, alike, 0.5);
}

static bool is_slow(double speed, const std::vector<double>& speeds) {
    return far_below(speed, speeds, 0.6);
}

std::vector<std::string> plan_warnings(const JobTiming& timing, const std::vector<Peer>& peers,
                                       int64_t batch, const std::vector<double>& shares) {
    const auto rank_text = [&](int rank) {
        return size_t(rank) < peers.size()
                   ? cat("rank ", rank, " (", peers[size_t(rank)].address, ")")
                   : cat("rank ", rank);
    };
    std::vector<std::string> warnings;
    std::vector<EdgeTiming> slow;
    for (const EdgeTiming& edge : timing.edges)
        if (is_slow(edge, timing)) slow.push_back(edge);
    // A bad cable or card shows in all edges of a rank, and in no others.
    for (int rank = 0; rank < int(timing.ranks.size()); ++rank) {
        const auto touches = [&](const EdgeTiming& e) { return e.from == rank || e.to == rank; };
        if (slow.size() < 3 || !std::ranges::all_of(slow, touches)) continue;
        warnings.push_back(fmt::format(
            "all links of {} are far slower than the rest ({:.0f} Mbit/s): check its cable, its "
            "network card and its port of the switch",
            rank_text(rank), mbit_per_second(slow[0])));
        slow.clear();
    }
    for (const EdgeTiming& edge : slow)
        warnings.push_back(
            fmt::format("the link from {} to {} is far slower than the rest: {:.0f} Mbit/s",
                        rank_text(edge.from), rank_text(edge.to), mbit_per_second(edge)));
    const std::vector<double> speeds = compute_speeds(timing, batch, shares);
    for (size_t rank = 0; rank < speeds.size(); ++rank)
        if (is_slow(speeds[rank], speeds))
            warnings.push_back(fmt::format(
                "{} computes far slower than the rest: {:.1f} of {:.1f} img/s; --share auto gives "
                "it fewer images",
                rank_text(int(rank)), speeds[rank], std::ranges::max(speeds)));
    return warnings;
}

// ---- tables and JSON lines --------------------------------------------------------------------

static void print_edges(const JobTiming& timing, bool json) {
    Table table(json);
    for (const EdgeTiming& edge : timing.edges)
        table.row({{"plan", "edge"},
                   {"from", edge.from, "from"},
                   {"to", edge.to, "to"},
                   {"latency_ms", 1e3 * edge.latency_seconds, "latency", "{:.3f} ms"},
                   {"mbit_per_second", mbit_per_second(edge), "Mbit/s", "{:.0f}"},
                   {"slow", is_slow(edge, timing), "", "far slower than the rest"}});
    if (!json && !timing.edges.empty())
        fmt::print("bucket {:.1f} MB; overlap slowdown: compute {:.2f}x, all-reduce {:.2f}x\n\n",
                   double(timing.bucket_bytes) / (1 << 20), timing.link.compute_slowdown,
                   timing.link.network_slowdown);
}

static void print_ranks(const PlanReport& report, bool json) {
    Table table(json);
    const std::vector<double> speeds = compute_speeds(report.timing, report.batch, report.shares);
    for (size_t rank = 0; rank < speeds.size(); ++rank)
        table.row(
            {{"plan", "rank"},
             {"rank", rank, "rank"},
             {"threads", report.timing.ranks[rank].threads, "threads"},
             {"share", report.shares[rank], "share", "{:g}"},
             {"images_per_second", speeds[rank], "compute img/s", "{:.1f}"},
             {"address", rank < report.peers.size() ? report.peers[rank].address : "", "address"},
             {"slow", is_slow(speeds[rank], speeds), "", "far slower than the rest"}});
}

// A row for each number of ranks, a column for each way to send.
static void print_choices(const PlanReport& report) {
    fmt::print("\npredicted img/s (percent of what the ranks compute without network)\n");
    Table table(false);
    const std::vector<PlanChoice>& choices = report.choices;
    for (auto choice = choices.begin(); choice != choices.end();) {
        const int ranks = choice->ranks();
        std::vector<Cell> row{{"", ranks, "ranks"}};
        for (const PlanChoice& column : choices) {
            if (column.ranks() != choices.back().ranks()) continue;  // it has every column
            std::string text;
            if (choice != choices.end() && choice->ranks() == ranks &&
                choice->setting == column.setting) {
                const Prediction& p = choice++->prediction;
                text = fmt::format("{:.1f} ({:.0f} %)", p.images_per_second, 100 * p.efficiency());
                if (choice[-1].best) text = "* " + text;
            }
            row.push_back({"", text, setting_text(column.setting), "{:>18}"});
        }
        table.row(row);
    }
    fmt::print("* best: {}\n", options_text(best_choice(choices), report.fair));
    const double best = best_choice(choices).prediction.images_per_second;
    for (const PlanPipeline& p : report.pipelines)
        fmt::print("--sync pipeline:{}: {:.1f} img/s, {}: {}\n", p.stages, p.images_per_second,
                   p.text,
                   p.images_per_second > best ? "faster than a ring"
                                              : "only for what does not fit one rank's memory");
}

void print_plan(const PlanReport& report, bool json) {
    print_edges(report.timing, json);
    print_ranks(report, json);
    const PlanLink& link = report.timing.link;
    if (!json) {
        print_choices(report);
        if (report.real_steps > 0)
            fmt::print("{} real steps, {} ranks, {}: {:.1f} img/s ({:.1f} predicted)\n",
                       report.real_steps, report.timing.ranks.size(),
                       setting_text(report.real_setting), report.real_images_per_second,
                       report.predicted);
        for (const std::string& warning :
             plan_warnings(report.timing, report.peers, report.batch, report.shares))
            fmt::print("{}\n", warning);
        return;
    }
    Table lines(json);
    for (const PlanChoice& choice : report.choices)
        lines.row({{"plan", "prediction"},
                   {"ranks", choice.ranks()},
                   {"wire", wire_text(choice.setting)},
                   {"factors", choice.setting.factors != FactorMode::kOff},
                   {"images_per_second", choice.prediction.images_per_second},
                   {"efficiency", choice.prediction.efficiency()},
                   {"step_ms", 1e3 * choice.prediction.step_seconds},
                   {"waited_ms", 1e3 * choice.prediction.waited_seconds},
                   {"best", choice.best},
                   {"options", options_text(choice, report.fair)}});
    for (const PlanPipeline& p : report.pipelines)
        lines.row({{"plan", "pipeline"},
                   {"stages", p.stages},
                   {"images_per_second", p.images_per_second},
                   {"cut", p.text}});
    if (report.real_steps > 0)
        lines.row({{"plan", "rehearsal"},
                   {"ranks", report.timing.ranks.size()},
                   {"wire", wire_text(report.real_setting)},
                   {"factors", report.real_setting.factors != FactorMode::kOff},
                   {"steps", report.real_steps},
                   {"images_per_second", report.real_images_per_second},
                   {"predicted", report.predicted},
                   {"bucket_bytes", report.timing.bucket_bytes},
                   {"ring_factor", link.ring_factor},
                   {"compute_slowdown", link.compute_slowdown},
                   {"network_slowdown", link.network_slowdown}});
}

}  // namespace convoy
