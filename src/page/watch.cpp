// watch.cpp — see watch.h.
#include "src/page/watch.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

#include "src/base/text.h"
#include "src/page/state.h"

namespace convoy {

using nlohmann::json;

// What is shown of a field: a page elsewhere may send anything.
static std::string word(const json& of, const char* name) { return printable(json_text(of, name)); }

static const json& list(const json& of, const char* name) {
    static const json none = json::array();
    const auto found = of.is_object() ? of.find(name) : of.end();
    return found != of.end() && found->is_array() ? *found : none;
}

static std::string shown(const char* format, double x, double factor = 1) {
    return std::isfinite(x) ? fmt::format(fmt::runtime(format), factor * x) : "-";
}

bool is_over(const json& state) {
    const std::string phase = word(state, "state");
    return phase == "done" || phase == "stopped" || phase == "failed";
}

std::string watch_line(const json& state) {
    std::string line =
        cat(word(state, "state"), "  step ", shown("{:.0f}", json_number(state, "step")));
    if (json_number(state, "steps") > 0) line += shown("/{:.0f}", json_number(state, "steps"));
    line += cat("  loss ", shown("{:.4f}", json_number(state, "loss")), "  top1 ",
                shown("{:.1f} %", json_number(state, "top1"), 100), "  ",
                shown("{:.1f} img/s", json_number(state, "images_per_second")));
    if (std::isfinite(json_number(state, "val_top1")))
        line += shown("  val {:.2f} %", json_number(state, "val_top1"), 100);
    if (std::isfinite(json_number(state, "eta")))
        line += "  eta " + clock_text(json_number(state, "eta"));
    return line;
}

std::vector<std::string> watch_lines(const json& state, int width) {
    std::vector<std::string> lines;
    lines.push_back(cat(word(state, "model"), " on ",
                        word(state, "data").empty() ? "generated images" : word(state, "data")));
    const double part = json_number(state, "step") / json_number(state, "steps");
    lines.push_back(cat(bar_text(std::isfinite(part) ? part : 0, std::clamp(width / 4, 8, 40)), " ",
                        watch_line(state)));
    const double late = json_number(state, "now") - json_number(state, "last_step_time");
    if (word(state, "state") == "training" && json_number(state, "last_step_time") > 0 && late > 30)
        lines.push_back(cat("no step is logged since ", clock_text(late)));
    if (const std::string limit = word(state, "limit"); !limit.empty()) lines.push_back(limit);
    lines.push_back("");
    lines.push_back(fmt::format("{:>4}  {:<21} {:>5} {:>6} {:>6} {:>6} {:>6} {:>9} {:>10}  {}",
                                "rank", "address", "share", "images", "comp.", "net", "CPU",
                                "memory", "sends", "GPU"));
    const json& ranks = list(state, "ranks");
    for (size_t i = 0; i < std::min<size_t>(ranks.size(), 64); ++i) {
        const json& rank = ranks[i];
        const double data = json_number(rank, "data_wait"), net = json_number(rank, "net_wait"),
                     compute = json_number(rank, "compute");
        const auto bytes = [](double x) { return std::isfinite(x) ? bytes_text(x) : "-"; };
        lines.push_back(fmt::format(
            "{:>4}  {:<21} {:>5} {:>6} {:>6} {:>6} {:>6} {:>9} {:>10}  {}", i,
            word(rank, "address"), shown("{:g}", json_number(rank, "share")),
            shown("{:.0f} %", data, 100),
            shown("{:.0f} %", std::isfinite(compute) ? compute : std::max(1 - data - net, 0.0),
                  100),
            shown("{:.0f} %", net, 100), shown("{:.0f} %", json_number(rank, "cpu"), 100),
            bytes(json_number(rank, "memory")),
            bytes(json_number(rank, "sent") / json_number(rank, "seconds")) + "/s",
            shown("{:.0f} %", json_number(rank, "gpu"), 100)));
    }
    for (std::string& line : lines) line = cut_text(line, width);
    return lines;
}

std::vector<std::string> watch_events(const json& state) {
    std::vector<std::string> lines;
    for (const json& event : list(state, "events")) {
        if (!event.is_array() || event.size() != 3 || !event[2].is_string()) continue;
        std::string line;
        if (event[0].is_number() && std::abs(event[0].get<double>()) < 1e11) {
            const std::time_t time = event[0].get<std::time_t>();
            char clock[16];
            std::strftime(clock, sizeof clock, "%T  ", std::localtime(&time));
            line = clock;
        }
        if (event[1].is_number() && std::isfinite(event[1].get<double>()))
            line += fmt::format("step {:.0f}  ", event[1].get<double>());
        lines.push_back(line + printable(event[2].get<std::string>()));
    }
    return lines;
}

}  // namespace convoy
