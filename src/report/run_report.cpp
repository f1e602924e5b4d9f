// run_report.cpp — see run_report.h.
#include "src/report/run_report.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "src/base/check.h"
#include "src/base/text.h"

namespace convoy {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

struct Chart {
    const char *field, *title;
    std::vector<double> values;  // that the axis shows in any case
};
const Chart kCharts[] = {
    {"loss", "Loss", {}},
    {"top1", "Top-1 accuracy", {0, 1}},
    {"lr", "Learning rate", {0}},
    {"images_per_second", "Images per second", {0}},
    {"data_wait", "Part of the time that was waited for images", {0, 0.1}},
    {"net_wait", "Part of the time that was waited for the network", {0, 0.1}}};

void drop_from(RunHistory::Points& points, double step) {
    while (!points.empty() && points.back()[0] >= step) points.pop_back();
}

void take(RunHistory& run, const json& event) {
    const std::string kind = event.at("event");
    const bool has_points = kind == "step" || kind == "val";
    const double step = has_points ? event.at("step").get<double>() : event.value("step", 0.0);
    if (kind == "start")
        for (const auto& [option, value] : event.items())
            if (value.is_string() && option != "event") run.settings[option] = value;
    if (has_points)
        for (const Chart& chart : kCharts) {
            auto& points = (kind == "val" ? run.val : run.train)[chart.field];
            drop_from(points, step);
            if (event.contains(chart.field) && event[chart.field].is_number())
                points.push_back({step, event[chart.field]});
            // A validation comes after its step; a rank that takes over may say it first.
            if (kind == "step") drop_from(run.val[chart.field], step + 1);
        }
    if (kind == "done")
        for (const auto& [field, value] : event.items())
            if (value.is_number() && field != "time" && field != "rank") run.done[field] = value;
    for (const char* cause : {"why", "cause"})
        if (event.contains(cause))
            run.events.push_back(cat("step ", step, ": ", event[cause].get<std::string>()));
}

std::string chart_of(const Chart& chart, const std::vector<RunHistory>& runs) {
    std::vector<Curve> curves;
    for (size_t i = 0; i < runs.size(); ++i)
        for (const bool val : {false, true}) {
            const auto& fields = val ? runs[i].val : runs[i].train;
            const auto found = fields.find(chart.field);
            if (found == fields.end() || found->second.empty()) continue;
            std::string name = runs.size() > 1 ? runs[i].name : "training";
            if (val) name = runs.size() > 1 ? name + ", validation" : "validation";
            curves.push_back({name, found->second, val, i});
        }
    return curves.empty() ? "" : line_chart(chart.title, "step", std::move(curves), chart.values);
}

// What the runs ended with; the best validation by its top-1.
std::string results_table(const std::vector<RunHistory>& runs) {
    std::vector<std::vector<std::string>> rows;
    for (const RunHistory& run : runs) {
        const auto number = [&](const char* field, const char* format) {
            const auto found = run.done.find(field);
            return found == run.done.end() ? std::string("–")
                                           : fmt::format(fmt::runtime(format), found->second);
        };
        double best = -1, at = 0;
        if (const auto top1 = run.val.find("top1"); top1 != run.val.end())
            for (const auto& [step, value] : top1->second)
                if (value > best) best = value, at = step;
        rows.push_back({html_text(run.name), number("step", "{:.0f}"),
                        best < 0 ? "–" : fmt::format("{:.1f} %", 100 * best),
                        best < 0 ? "–" : fmt::format("{:.0f}", at),
                        run.done.contains("seconds") ? clock_text(run.done.at("seconds")) : "–",
                        number("images_per_second", "{:.1f}"), number("cost", "{:.2f}"),
                        number("kwh", "{:.3g}")});
    }
    return html_table({"run", "steps", "best top-1", "at step", "time", "images/s", "cost", "kWh"},
                      rows);
}

// All settings of one run; of several those in which they differ.
std::string settings_table(const std::vector<RunHistory>& runs) {
    std::set<std::string> names;
    for (const RunHistory& run : runs)
        for (const auto& [name, value] : run.settings) names.insert(name);
    std::vector<std::string> heads = {"option"};
    for (const RunHistory& run : runs) heads.push_back(html_text(run.name));
    std::vector<std::vector<std::string>> rows;
    for (const std::string& name : names) {
        std::vector<std::string> row = {html_text(name)};
        for (const RunHistory& run : runs)
            row.push_back(run.settings.contains(name) ? html_text(run.settings.at(name)) : "");
        const bool differ = std::any_of(row.begin() + 2, row.end(),
                                        [&](const std::string& cell) { return cell != row[1]; });
        if (runs.size() == 1 || differ) rows.push_back(std::move(row));
    }
    return html_table(heads, rows);
}

}  // namespace

RunHistory read_history(const std::string& path) {
    const std::string file = fs::is_directory(path) ? path + "/log.jsonl" : path;
    std::ifstream log(file);
    if (!log) fail("there is no ", file, ": report needs the folder of a run");
    RunHistory run;
    run.name = fs::weakly_canonical(file).parent_path().filename();
    for (std::string line; std::getline(log, line);) try {
            take(run, json::parse(line));
        } catch (const json::exception&) {
            ++run.damaged;
        }
    if (run.settings.empty() && run.train.empty() && run.val.empty())
        fail(file, " has no events of a run: name a run's folder, or its log.jsonl");
    return run;
}

void write_run_report(const std::string& folder, const std::vector<RunHistory>& runs) {
    std::string body = results_table(runs) + "<h2>Curves</h2>\n";
    for (const Chart& chart : kCharts) {
        const std::string svg = chart_of(chart, runs);
        if (svg.empty()) continue;
        write_in(folder, cat(chart.field, ".svg"), svg);
        body += svg;
    }
    body += cat("<h2>", runs.size() > 1 ? "Settings that differ" : "Settings", "</h2>\n",
                settings_table(runs));
    for (const RunHistory& run : runs) {
        if (!run.events.empty())
            body += cat("<h2>Events of ", html_text(run.name), "</h2>\n<ul>\n");
        for (const std::string& event : run.events)
            body += cat("<li>", html_text(event), "</li>\n");
        if (!run.events.empty()) body += "</ul>\n";
        if (run.damaged > 0)
            body += cat("<p>", run.damaged, " lines of ", html_text(run.name),
                        "/log.jsonl cannot be read and are left out.</p>\n");
    }
    write_in(folder, "report.html",
             html_page(runs.size() > 1 ? "Comparison of runs" : "Run " + runs[0].name, body));
}

}  // namespace convoy
