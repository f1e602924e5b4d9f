// metrics.cpp — the state of a run in Prometheus's text format 0.0.4.
//
// Values have base units, fractions are from 0 to 1, and names of counters end in _total. Metrics
// give times, not ages. When a rank ends, its series end. Labels have no paths and no class names,
// because each value of a label makes a new series that Prometheus keeps.
#include <cmath>

#include "src/base/text.h"
#include "src/page/state.h"

namespace convoy {
using nlohmann::json;
namespace {

std::string label(std::string_view value) {
    std::string out;
    for (const char c : value)
        if (c == '\\' || c == '"')
            out += cat('\\', c);
        else
            out += c == '\n' ? "\\n" : std::string(1, c);
    return out;
}

struct Metric {
    const char *field, *name, *type, *help;
    const char* labels = "";  // in addition to those of a rank
};

constexpr Metric kOfJob[] = {
    {"step", "convoy_step", "gauge", "Steps done."},
    {"steps", "convoy_steps_planned", "gauge", "Steps of the whole run."},
    {"epoch", "convoy_epoch", "gauge", "Epoch of the last step, from 0."},
    {"images_per_second", "convoy_images_per_second", "gauge", "Images per second of all ranks."},
    {"lr", "convoy_learning_rate", "gauge", "Learning rate."},
    {"loss", "convoy_loss", "gauge", "Mean loss.", "split=\"train\""},
    {"val_loss", "convoy_loss", "gauge", "Mean loss.", "split=\"val\""},
    {"top1", "convoy_top1_ratio", "gauge", "Part of the images that were classified correctly.",
     "split=\"train\""},
    {"val_top1", "convoy_top1_ratio", "gauge", "Part of the images that were classified correctly.",
     "split=\"val\""},
};
constexpr const char* kPhaseHelp = "Time of a rank by phase; the phases add up to its whole time.";
constexpr Metric kOfRanks[] = {
    {"data_seconds", "convoy_phase_seconds_total", "counter", kPhaseHelp, "phase=\"data\""},
    {"net_seconds", "convoy_phase_seconds_total", "counter", kPhaseHelp, "phase=\"network\""},
    {"compute_seconds", "convoy_phase_seconds_total", "counter", kPhaseHelp, "phase=\"compute\""},
    {"other_seconds", "convoy_phase_seconds_total", "counter", kPhaseHelp, "phase=\"other\""},
    {"cpu_seconds", "convoy_cpu_seconds_total", "counter", "Processor time of a rank."},
    {"memory", "convoy_resident_memory_bytes", "gauge", "Memory of a rank."},
    {"sent_bytes", "convoy_network_sent_bytes_total", "counter", "Bytes sent to other ranks."},
};

}  // namespace

std::string PageState::metrics() const {
    std::lock_guard lock(mutex_);
    std::string text;
    std::string_view last;  // samples of one name must follow one another
    const auto add = [&](const Metric& metric, const std::string& labels, double value) {
        if (!std::isfinite(value)) return;
        if (last != metric.name)
            text += cat("# HELP ", metric.name, " ", metric.help, "\n# TYPE ", metric.name, " ",
                        metric.type, "\n");
        last = metric.name;
        const char* comma = *metric.labels && !labels.empty() ? "," : "";
        const std::string all = cat(labels, comma, metric.labels);
        text += cat(metric.name, all.empty() ? "" : cat("{", all, "}"), " ", value, "\n");
    };
    add({"", "convoy_job_info", "gauge", "The model that is trained."},
        cat("model=\"", label(json_text(facts_, "model")), "\""), 1);
    for (const char* phase : {"starting", "training", "waiting", "done", "stopped", "failed"})
        add({"", "convoy_state", "gauge", "1 for the state that the run is in."},
            cat("state=\"", phase, "\""), phase_ == phase);
    for (const Metric& metric : kOfJob) add(metric, "", json_number(facts_, metric.field));
    add({"", "convoy_images_total", "counter", "Images trained on."}, "", images_);
    add({"", "convoy_regroups_total", "counter", "How often ranks were lost, left or joined."}, "",
        regroups_);
    add({"", "convoy_last_step_timestamp_seconds", "gauge", "Time of the last logged step."}, "",
        last_step_time_ > 0 ? last_step_time_ : NAN);
    add({"", "convoy_checkpoint_timestamp_seconds", "gauge", "Time of the last checkpoint."}, "",
        json_number(facts_, "checkpoint_time"));
    add({"", "convoy_ranks", "gauge", "Ranks in the job."}, "", double(ranks_.size()));
    for (const Metric& metric : kOfRanks)
        for (const json& rank : ranks_)
            add(metric,
                cat("rank=\"", rank["rank"].get<size_t>(), "\",host=\"",
                    label(json_text(rank, "address")), "\""),
                json_number(rank, metric.field));
    return text;
}

}  // namespace convoy
