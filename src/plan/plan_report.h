// plan_report.h — measurements and predictions, as tables and as JSON lines.
#pragma once

#include <string>
#include <vector>

#include "src/plan/job_timing.h"

namespace convoy {

struct PlanChoice {
    std::vector<double> shares;  // of the first ranks, which take part
    PlanSetting setting;
    Prediction prediction;
    bool has_factors = false;  // sending factors makes a difference
    bool best = false;
    int ranks() const { return int(shares.size()); }
};

// Predictions for 1 … all ranks and each way to send. `shares`: of all ranks; empty: fair ones for
// each number of ranks. Of two within 2 %, fewer ranks or the simpler way to send is
// preferred. With --sync average:H nothing goes as factors; else by `factors` (auto, where it
// is off) in some of the choices.
std::vector<PlanChoice> plan_choices(const JobTiming& timing, int64_t batch,
                                     const std::vector<double>& shares, int64_t sync_every,
                                     FactorMode factors);
const PlanChoice& best_choice(const std::vector<PlanChoice>& choices);

// The options that make this choice: "--world 4 --wire bf16".
std::string options_text(const PlanChoice& choice, bool with_shares);
// How this job would send; factors are off where no layer is sent as them.
PlanSetting setting_of(const Config& config, const JobTiming& timing);
// "fp32", "bf16", "fp32+factors", "fp32+factors on"
std::string setting_text(PlanSetting setting);

double mbit_per_second(const EdgeTiming& edge);
// Whether an edge has less than half the bandwidth of the upper quarter of its kind (within or
// between machines).
bool is_slow(const EdgeTiming& edge, const JobTiming& timing);
// A sentence for each edge or rank that stands out: "the link from rank 2 to rank 3 …".
std::vector<std::string> plan_warnings(const JobTiming& timing, const std::vector<Peer>& peers,
                                       int64_t batch, const std::vector<double>& shares);

struct PlanPipeline {
    int stages;
    std::string text;          // where it is cut
    double images_per_second;  // predicted
};

struct PlanReport {
    const JobTiming& timing;
    const std::vector<Peer>& peers;
    int64_t batch;
    std::vector<double> shares;  // of all ranks, as they would train
    bool fair = false;           // --share auto
    std::vector<PlanChoice> choices = {};
    std::vector<PlanPipeline> pipelines = {};
    // Real steps, to check the prediction.
    int real_steps = 0;
    PlanSetting real_setting = {};
    double real_images_per_second = 0, predicted = 0;
};
// As tables, or as one JSON object a line.
void print_plan(const PlanReport& report, bool json);

}  // namespace convoy
