#include "src/plan/plan_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "src/base/check.h"
#include "src/base/text.h"

namespace convoy {

using nlohmann::json;

static constexpr double kBetter = 1.02;  // what is not worth another setting or another machine

std::vector<PlanChoice> plan_choices(const JobTiming& timing, int64_t batch,
                                     const std::vector<double>& shares, int64_t sync_every,
                                     FactorMode factors) {
    if (factors == FactorMode::kOff) factors = FactorMode::kAuto;
    const PlanSetting settings[] = {
        {false, FactorMode::kOff}, {true, FactorMode::kOff}, {false, factors}, {true, factors}};
    std::vector<PlanChoice> choices;
    const int world = int(timing.ranks.size());
    for (int ranks = 1; ranks <= world && ranks <= batch; ++ranks)
        for (const PlanSetting setting : settings) {
            if (ranks == 1 && setting != PlanSetting{}) continue;
            PlanChoice choice;
            choice.setting = setting;
            choice.layers_for_factors =
                sync_every == 1 && any_factors(timing.params, batch, ranks, factors);
            if (setting.factors != FactorMode::kOff && !choice.layers_for_factors) continue;
            if (shares.empty())
                choice.shares = fair_shares(timings_of(timing, ranks), batch);
            else
                choice.shares.assign(shares.begin(), shares.begin() + ranks);
            if (std::all_of(choice.shares.begin(), choice.shares.end(),
                            [](double share) { return share == 0; }))
                continue;
            choice.prediction =
                predict(plan_job(timing, batch, choice.shares, sync_every), setting);
            choices.push_back(std::move(choice));
        }
    ENSURE(!choices.empty(), "nobody has a share");
    size_t best = 0;
    for (size_t i = 1; i < choices.size(); ++i)
        if (choices[i].prediction.images_per_second >
            kBetter * choices[best].prediction.images_per_second)
            best = i;
    choices[best].best = true;
    return choices;
}

const PlanChoice& best_choice(const std::vector<PlanChoice>& choices) {
    return *std::find_if(choices.begin(), choices.end(),
                         [](const PlanChoice& choice) { return choice.best; });
}

PlanSetting setting_of(const Config& config) {
    return {config.wire == "bf16", parse_factor_mode(config.factors)};
}

std::string setting_text(PlanSetting setting) {
    const FactorMode factors = setting.factors;
    return cat(setting.bf16 ? "bf16" : "fp32", factors == FactorMode::kOff ? "" : "+factors",
               factors == FactorMode::kOn ? " on" : "");
}

std::string options_text(const PlanChoice& choice, bool with_shares) {
    std::string text = cat("--world ", choice.ranks());
    if (choice.ranks() > 1) text += choice.setting.bf16 ? " --wire bf16" : " --wire fp32";
    const FactorMode factors = choice.setting.factors;
    if (choice.layers_for_factors)
        text += cat(" --factors ", factors == FactorMode::kOff  ? "off"
                                   : factors == FactorMode::kOn ? "on"
                                                                : "auto");
    if (with_shares && choice.ranks() > 1) text += cat(" --share ", shares_text(choice.shares));
    return text;
}

static bool same_machine(const JobTiming& timing, const EdgeTiming& edge) {
    return timing.ranks[size_t(edge.from)].machine == timing.ranks[size_t(edge.to)].machine;
}

std::vector<size_t> slow_edges_of(const JobTiming& timing) {
    std::vector<size_t> found;
    for (const bool within : {false, true}) {
        std::vector<EdgeTiming> kind;
        std::vector<size_t> place;
        for (size_t i = 0; i < timing.edges.size(); ++i)
            if (same_machine(timing, timing.edges[i]) == within)
                kind.push_back(timing.edges[i]), place.push_back(i);
        for (const size_t i : slow_edges(kind)) found.push_back(place[i]);
    }
    std::sort(found.begin(), found.end());
    return found;
}

static std::string mbit_text(double bytes_per_second) {
    const double mbit = bytes_per_second * 8 / 1e6;
    return mbit < 9'999.5 ? fmt::format("{:.0f} Mbit/s", mbit)
                          : fmt::format("{:.1f} Gbit/s", mbit / 1e3);
}

static std::string rank_text(const std::vector<Peer>& peers, int rank) {
    return size_t(rank) < peers.size() ? cat("rank ", rank, " (", peers[size_t(rank)].address, ")")
                                       : cat("rank ", rank);
}

std::vector<std::string> plan_warnings(const JobTiming& timing, const std::vector<Peer>& peers,
                                       int64_t batch, const std::vector<double>& shares) {
    std::vector<std::string> warnings;
    const std::vector<size_t> slow = slow_edges_of(timing);
    // A machine with a bad cable or card shows in all its edges, and in no others.
    std::set<int> common;
    for (const size_t i : slow) {
        const std::set<int> ends = {timing.edges[i].from, timing.edges[i].to};
        std::set<int> both;
        std::set_intersection(common.begin(), common.end(), ends.begin(), ends.end(),
                              std::inserter(both, both.begin()));
        common = i == slow.front() ? ends : both;
    }
    for (const size_t i : slow) {
        const EdgeTiming& edge = timing.edges[i];
        if (slow.size() > 2 && common.size() == 1) {
            warnings.push_back(cat("all edges of ", rank_text(peers, *common.begin()),
                                   " are far slower than the rest (",
                                   mbit_text(edge.bytes_per_second),
                                   "): look at its cable, its card and its port of the switch"));
            break;
        }
        warnings.push_back(cat("the edge from ", rank_text(peers, edge.from), " to ",
                               rank_text(peers, edge.to),
                               " is far slower than the rest: ", mbit_text(edge.bytes_per_second)));
    }
    const std::vector<double> speeds = compute_speeds(timing, batch, shares);
    double most = 0;
    for (double speed : speeds) most = std::max(most, speed);
    for (const size_t rank : slow_ranks(speeds))
        warnings.push_back(fmt::format(
            "{} computes far slower than the rest: {:.1f} of {:.1f} img/s; --share auto gives it "
            "fewer images",
            rank_text(peers, int(rank)), speeds[rank], most));
    return warnings;
}

// ---- tables -----------------------------------------------------------------------------------

static void print_edges(const PlanReport& report, std::FILE* out) {
    if (report.timing.edges.empty()) return;
    const std::vector<size_t> slow = slow_edges_of(report.timing);
    fmt::print(out, "{:>4} {:>4} {:>10} {:>12}\n", "from", "to", "latency", "Mbit/s");
    for (size_t i = 0; i < report.timing.edges.size(); ++i) {
        const EdgeTiming& edge = report.timing.edges[i];
        const bool marked = std::find(slow.begin(), slow.end(), i) != slow.end();
        fmt::print(out, "{:>4} {:>4} {:>7.3f} ms {:>12.0f}{}\n", edge.from, edge.to,
                   1e3 * edge.latency_seconds, edge.bytes_per_second * 8 / 1e6,
                   marked ? "  far slower than the rest" : "");
    }
    const PlanLink& link = report.timing.link;
    fmt::print(out,
               "bucket {:.1f} MB; while both go on, compute takes {:.2f} and a sum {:.2f} times as "
               "long\n\n",
               double(report.timing.bucket_bytes) / (1 << 20), link.compute_slowdown,
               link.network_slowdown);
}

static void print_ranks(const PlanReport& report, std::FILE* out) {
    const std::vector<double> speeds = compute_speeds(report.timing, report.batch, report.shares);
    const std::vector<size_t> slow = slow_ranks(speeds);
    fmt::print(out, "{:>4} {:>8} {:>6} {:>14}  {}\n", "rank", "threads", "share", "compute img/s",
               report.peers.empty() ? "" : "address");
    for (size_t rank = 0; rank < speeds.size(); ++rank) {
        const bool marked = std::find(slow.begin(), slow.end(), rank) != slow.end();
        fmt::print(out, "{:>4} {:>8} {:>6g} {:>14.1f}  {}{}\n", rank,
                   report.timing.ranks[rank].threads, report.shares[rank], speeds[rank],
                   rank < report.peers.size() ? report.peers[rank].address : "",
                   marked ? "  far slower than the rest" : "");
    }
    fmt::print(out, "\n");
}

static void print_choices(const PlanReport& report, std::FILE* out) {
    fmt::print(out, "predicted images/s, and part of what the ranks compute without network\n");
    fmt::print(out, "{:>5}", "ranks");
    for (const PlanChoice& choice : report.choices)  // all ranks have every setting that any has
        if (choice.ranks() == report.choices.back().ranks())
            fmt::print(out, " {:>18}", setting_text(choice.setting));
    int ranks = 0;
    for (const PlanChoice& choice : report.choices) {
        if (choice.ranks() != ranks) fmt::print(out, "\n{:>5}", ranks = choice.ranks());
        fmt::print(
            out, " {:>18}",
            fmt::format("{}{:.1f} ({:.0f} %)", choice.best ? "* " : "",
                        choice.prediction.images_per_second, 100 * choice.prediction.efficiency()));
    }
    const PlanChoice& best = best_choice(report.choices);
    fmt::print(out, "\n* best: {}\n", options_text(best, report.fair));
}

void print_plan(const PlanReport& report, std::FILE* out) {
    print_edges(report, out);
    print_ranks(report, out);
    print_choices(report, out);
    const Rehearsal& real = report.rehearsal;
    if (real.steps > 0)
        fmt::print(out, "{} real steps with {}, {} ranks: {:.1f} img/s ({:.1f} predicted)\n",
                   real.steps, setting_text(real.setting), report.timing.ranks.size(),
                   real.images_per_second, real.predicted);
    for (const std::string& warning :
         plan_warnings(report.timing, report.peers, report.batch, report.shares))
        fmt::print(out, "{}\n", warning);
}

void print_plan_json(const PlanReport& report, std::FILE* out) {
    const auto print = [&](const json& line) { fmt::print(out, "{}\n", line.dump()); };
    const std::vector<size_t> slow = slow_edges_of(report.timing);
    for (size_t i = 0; i < report.timing.edges.size(); ++i) {
        const EdgeTiming& edge = report.timing.edges[i];
        print({{"plan", "edge"},
               {"from", edge.from},
               {"to", edge.to},
               {"latency_ms", 1e3 * edge.latency_seconds},
               {"mbit_per_second", edge.bytes_per_second * 8 / 1e6},
               {"slow", std::find(slow.begin(), slow.end(), i) != slow.end()}});
    }
    const std::vector<double> speeds = compute_speeds(report.timing, report.batch, report.shares);
    const std::vector<size_t> behind = slow_ranks(speeds);
    for (size_t rank = 0; rank < speeds.size(); ++rank)
        print({{"plan", "rank"},
               {"rank", rank},
               {"threads", report.timing.ranks[rank].threads},
               {"share", report.shares[rank]},
               {"images_per_second", speeds[rank]},
               {"address", rank < report.peers.size() ? report.peers[rank].address : ""},
               {"slow", std::find(behind.begin(), behind.end(), rank) != behind.end()}});
    for (const PlanChoice& choice : report.choices)
        print({{"plan", "prediction"},
               {"ranks", choice.ranks()},
               {"wire", choice.setting.bf16 ? "bf16" : "fp32"},
               {"factors", choice.setting.factors != FactorMode::kOff},
               {"images_per_second", choice.prediction.images_per_second},
               {"efficiency", choice.prediction.efficiency()},
               {"step_ms", 1e3 * choice.prediction.step_seconds},
               {"waited_ms", 1e3 * choice.prediction.waited_seconds},
               {"best", choice.best},
               {"options", options_text(choice, report.fair)}});
    const PlanLink& link = report.timing.link;
    const Rehearsal& real = report.rehearsal;
    if (real.steps > 0)
        print({{"plan", "rehearsal"},
               {"ranks", report.timing.ranks.size()},
               {"wire", real.setting.bf16 ? "bf16" : "fp32"},
               {"factors", real.setting.factors != FactorMode::kOff},
               {"steps", real.steps},
               {"images_per_second", real.images_per_second},
               {"predicted", real.predicted},
               {"bucket_mb", double(report.timing.bucket_bytes) / (1 << 20)},
               {"ring_factor", link.ring_factor},
               {"compute_slowdown", link.compute_slowdown},
               {"network_slowdown", link.network_slowdown}});
}

}  // namespace convoy
