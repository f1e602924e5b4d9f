// command_report.cpp — report: the curves of runs as a page.
#include <filesystem>

#include "src/base/check.h"
#include "src/cli/commands.h"
#include "src/report/run_report.h"

namespace convoy {

static int command_report(const CommandLine& line, Log& log, const Stop&) {
    if (line.files.empty()) fail("report needs runs: trainer report RUN...");
    std::vector<RunHistory> runs;
    for (const std::string& path : line.files) runs.push_back(read_history(path));
    const std::string& out = line.config.out;
    const std::filesystem::path run = line.files[0];
    const std::filesystem::path beside = is_directory(run) ? run : run.parent_path();
    const std::string folder = !out.empty() ? out : std::string(beside / "report");
    write_run_report(folder, runs);
    log.info("wrote ", folder, "/report.html, and its charts as SVG beside");
    return 0;
}

const CommandRow kReportRow = with_files({"report", kReport, "RUN... [--out DIR]",
                                          "draw the curves of runs, side by side", command_report});

}  // namespace convoy
