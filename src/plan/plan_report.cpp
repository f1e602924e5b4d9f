#include "src/plan/plan_report.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/base/table.h"
#include "src/base/text.h"

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
            sync_every == 1 && any_factors(timing.params, batch, ranks, factors);
        const PlanJob job = plan_job(timing, batch, part, sync_every);
        for (const PlanSetting setting : settings) {
            if (ranks == 1 && setting != PlanSetting{}) continue;
            if (setting.factors != FactorMode::kOff && !has_factors) continue;
            choices.push_back({part, setting, predict(job, setting), has_factors});
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

PlanSetting setting_of(const Config& config) {
    return {config.wire == WireType::kBf16, config.factors};
}

std::string setting_text(PlanSetting setting) {
    return cat(setting.bf16 ? "bf16" : "fp32",
               setting.factors == FactorMode::kOff ? "" : "+factors",
               setting.factors == FactorMode::kOn ? " on" : "");
}

std::string options_text(const PlanChoice& choice, bool with_shares) {
    const FactorMode factors = choice.setting.factors;
    std::string text = cat("--world ", choice.ranks());
    if (choice.ranks() > 1) text += choice.setting.bf16 ? " --wire bf16" : " --wire fp32";
    if (choice.has_factors)
        text += factors == FactorMode::kOff  ? " --factors off"
                : factors == FactorMode::kOn ? " --factors on"
                                             : " --factors auto";
    if (with_shares && choice.ranks() > 1) text += cat(" --share ", shares_text(choice.shares));
    return text;
}

// ---- what stands out --------------------------------------------------------------------------

// Values below `part` of the upper quarter: a few slow ones are found, while a single one far above
// the rest does not make the rest look slow.
static std::vector<size_t> far_below(const std::vector<double>& values, double part) {
    std::vector<double> sorted = values;
    std::ranges::sort(sorted, std::greater());
    std::vector<size_t> found;
    for (size_t i = 0; i < values.size(); ++i)
        if (values[i] < part * sorted[sorted.size() / 4]) found.push_back(i);
    return found;
}

std::vector<size_t> slow_edges(const JobTiming& timing) {
    std::vector<size_t> found;
    for (const bool within : {false, true}) {
        std::vector<size_t> kind;
        std::vector<double> rates;
        for (size_t i = 0; i < timing.edges.size(); ++i) {
            const EdgeTiming& edge = timing.edges[i];
            const bool one_machine =
                timing.ranks[size_t(edge.from)].machine == timing.ranks[size_t(edge.to)].machine;
            if (one_machine == within) kind.push_back(i), rates.push_back(edge.bytes_per_second);
        }
        for (const size_t i : far_below(rates, 0.5)) found.push_back(kind[i]);
    }
    return found;
}

static std::vector<size_t> slow_ranks(const std::vector<double>& images_per_second) {
    return far_below(images_per_second, 0.6);
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
    for (const size_t i : slow_edges(timing)) slow.push_back(timing.edges[i]);
    // A bad cable or card shows in all edges of a rank, and in no others.
    for (int rank = 0; rank < int(timing.ranks.size()); ++rank) {
        const auto touches = [&](const EdgeTiming& e) { return e.from == rank || e.to == rank; };
        if (slow.size() < 3 || !std::ranges::all_of(slow, touches)) continue;
        warnings.push_back(
            fmt::format("all links of {} are far slower than the rest ({:.0f} "
                        "Mbit/s): check its cable, its network card and its port "
                        "of the switch",
                        rank_text(rank), slow[0].bytes_per_second * 8 / 1e6));
        slow.clear();
    }
    for (const EdgeTiming& edge : slow)
        warnings.push_back(
            fmt::format("the link from {} to {} is far slower than the rest: {:.0f} Mbit/s",
                        rank_text(edge.from), rank_text(edge.to), edge.bytes_per_second * 8 / 1e6));
    const std::vector<double> speeds = compute_speeds(timing, batch, shares);
    for (const size_t rank : slow_ranks(speeds))
        warnings.push_back(fmt::format(
            "{} computes far slower than the rest: {:.1f} of {:.1f} img/s; --share auto gives it "
            "fewer images",
            rank_text(int(rank)), speeds[rank], std::ranges::max(speeds)));
    return warnings;
}

// ---- tables and JSON lines --------------------------------------------------------------------

template <class T>
static bool contains(const std::vector<T>& values, T value) {
    return std::ranges::find(values, value) != values.end();
}

static void print_edges(const PlanReport& report, bool json, std::FILE* out) {
    Table table(json, out);
    const JobTiming& timing = report.timing;
    const std::vector<size_t> slow = slow_edges(timing);
    for (size_t i = 0; i < timing.edges.size(); ++i)
        table.row(
            {{"plan", "edge"},
             {"from", timing.edges[i].from, "from"},
             {"to", timing.edges[i].to, "to"},
             {"latency_ms", 1e3 * timing.edges[i].latency_seconds, "latency", "{:.3f} ms"},
             {"mbit_per_second", timing.edges[i].bytes_per_second * 8 / 1e6, "Mbit/s", "{:.0f}"},
             {"slow", contains(slow, i), "", "far slower than the rest"}});
    if (!json && !timing.edges.empty())
        fmt::print(out,
                   "bucket {:.1f} MB; overlap slowdown: compute {:.2f}x, all-reduce {:.2f}x\n\n",
                   double(timing.bucket_bytes) / (1 << 20), timing.link.compute_slowdown,
                   timing.link.network_slowdown);
}

static void print_ranks(const PlanReport& report, bool json, std::FILE* out) {
    Table table(json, out);
    const std::vector<double> speeds = compute_speeds(report.timing, report.batch, report.shares);
    const std::vector<size_t> slow = slow_ranks(speeds);
    for (size_t rank = 0; rank < speeds.size(); ++rank)
        table.row(
            {{"plan", "rank"},
             {"rank", rank, "rank"},
             {"threads", report.timing.ranks[rank].threads, "threads"},
             {"share", report.shares[rank], "share", "{:g}"},
             {"images_per_second", speeds[rank], "compute img/s", "{:.1f}"},
             {"address", rank < report.peers.size() ? report.peers[rank].address : "", "address"},
             {"slow", contains(slow, rank), "", "far slower than the rest"}});
}

// A row for each number of ranks, a column for each way to send.
static void print_choices(const PlanReport& report, std::FILE* out) {
    fmt::print(out, "\npredicted img/s (percent of what the ranks compute without network)\n");
    Table table(false, out);
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
    fmt::print(out, "* best: {}\n", options_text(best_choice(choices), report.fair));
}

void print_plan(const PlanReport& report, bool json, std::FILE* out) {
    print_edges(report, json, out);
    print_ranks(report, json, out);
    const auto wire = [](PlanSetting setting) { return setting.bf16 ? "bf16" : "fp32"; };
    const Rehearsal& real = report.rehearsal;
    if (!json) {
        print_choices(report, out);
        if (real.steps > 0)
            fmt::print(out, "{} real steps, {} ranks, {}: {:.1f} img/s ({:.1f} predicted)\n",
                       real.steps, report.timing.ranks.size(), setting_text(real.setting),
                       real.images_per_second, real.predicted);
        for (const std::string& warning :
             plan_warnings(report.timing, report.peers, report.batch, report.shares))
            fmt::print(out, "{}\n", warning);
        return;
    }
    Table lines(json, out);
    for (const PlanChoice& choice : report.choices)
        lines.row({{"plan", "prediction"},
                   {"ranks", choice.ranks()},
                   {"wire", wire(choice.setting)},
                   {"factors", choice.setting.factors != FactorMode::kOff},
                   {"images_per_second", choice.prediction.images_per_second},
                   {"efficiency", choice.prediction.efficiency()},
                   {"step_ms", 1e3 * choice.prediction.step_seconds},
                   {"waited_ms", 1e3 * choice.prediction.waited_seconds},
                   {"best", choice.best},
                   {"options", options_text(choice, report.fair)}});
    if (real.steps > 0)
        lines.row({{"plan", "rehearsal"},
                   {"ranks", report.timing.ranks.size()},
                   {"wire", wire(real.setting)},
                   {"factors", real.setting.factors != FactorMode::kOff},
                   {"steps", real.steps},
                   {"images_per_second", real.images_per_second},
                   {"predicted", real.predicted},
                   {"bucket_mb", double(report.timing.bucket_bytes) / (1 << 20)},
                   {"ring_factor", report.timing.link.ring_factor},
                   {"compute_slowdown", report.timing.link.compute_slowdown},
                   {"network_slowdown", report.timing.link.network_slowdown}});
}

}  // namespace convoy
