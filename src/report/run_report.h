// run_report.h — the curves of runs, from their log.jsonl, as a page and as SVG files.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "src/report/html.h"

namespace convoy {

// What a run's log tells. Of steps that were done twice, before and after --resume, the second ones
// count. Lines that are no events are counted and passed over.
struct RunHistory {
    std::string name;  // of the folder
    std::map<std::string, std::string> settings;
    using Points = std::vector<std::array<double, 2>>;  // step, value
    std::map<std::string, Points> train, val;           // by field of the events: "loss"
    std::map<std::string, double> done;                 // numbers of the last "done"
    std::vector<std::string> events;                    // "step 812: rank 2 was lost …"
    size_t damaged = 0;
};
// path: a run folder or a log.jsonl. Throws Error where there is none, or nothing in it.
RunHistory read_history(const std::string& path);

// Writes FOLDER/report.html, and each chart as FOLDER/<field>.svg. Throws Error.
void write_run_report(const std::string& folder, const std::vector<RunHistory>& runs);

}  // namespace convoy
