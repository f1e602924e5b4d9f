// plan_report.h — what was timed and what follows from it, as tables and as JSON lines.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "src/plan/job_timing.h"

namespace convoy {

struct PlanChoice {
    std::vector<double> shares;  // of the ranks that take part: the first so many
    PlanSetting setting;
    Prediction prediction;
    bool layers_for_factors = false;  // else --factors changes nothing
    bool best = false;
    int ranks() const { return int(shares.size()); }
};

// What there is to choose from: 1 … all ranks, each way of sending. `shares`: of all ranks; empty:
// fair ones for each number of ranks. Where two are within 2 % the one with fewer ranks, or sent in
// the plainer way, is the better. With --sync-every above 1 nothing goes as factors; else by
// `factors` (auto, where it is off) in some of the choices.
std::vector<PlanChoice> plan_choices(const JobTiming& timing, int64_t batch,
                                     const std::vector<double>& shares, int64_t sync_every = 1,
                                     FactorMode factors = FactorMode::kAuto);
const PlanChoice& best_choice(const std::vector<PlanChoice>& choices);

// "--world 4 --wire bf16": what gives this.
std::string options_text(const PlanChoice& choice, bool with_shares);
// What the options of a job say.
PlanSetting setting_of(const Config& config);
// "fp32", "bf16", "fp32+factors", "fp32+factors on"
std::string setting_text(PlanSetting setting);

// The edges of which `edge` is one, that are far slower than the rest of their kind (within or
// between hosts).
std::vector<size_t> slow_edges_of(const JobTiming& timing);
// A sentence for each edge, rank or machine that stands out: "the edge from rank 2 to rank 3 …".
std::vector<std::string> plan_warnings(const JobTiming& timing, const std::vector<Peer>& peers,
                                       int64_t batch, const std::vector<double>& shares);

// A run of real steps, to hold the prediction against.
struct Rehearsal {
    int steps = 0;
    double images_per_second = 0, predicted = 0;
    PlanSetting setting;
};

struct PlanReport {
    const JobTiming& timing;
    const std::vector<Peer>& peers;
    int64_t batch;
    std::vector<double> shares;  // of all ranks, as they would train
    bool fair = false;           // --share auto
    std::vector<PlanChoice> choices;
    Rehearsal rehearsal;
};
void print_plan(const PlanReport& report, std::FILE* out);
void print_plan_json(const PlanReport& report, std::FILE* out);

}  // namespace convoy
