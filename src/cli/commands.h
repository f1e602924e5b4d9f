// commands.h — the commands of the program: each is one row, defined in the file of the command.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "src/base/log.h"
#include "src/config/config.h"
#include "src/job/job_session.h"

namespace convoy {

// A default of one command, where it differs from Config's. `shown`: in --help, if that is another
// text; without a value the default is only shown.
struct CommandDefault {
    const char *option, *value, *shown = value;
};

inline constexpr CommandDefault kRunFolder = {"out", nullptr, "runs/<time>"};

struct CommandRow {
    const char* name;  // as it is typed: "bench train"
    Command command;   // the options it takes are those with this bit
    const char* usage;
    const char* help;
    // Returns the exit status, or throws Error. A command that never asks `stop` ends at once when
    // a signal comes; one that runs in a job must ask it (run_in_job does so first).
    int (*run)(const CommandLine& line, Log& log, const Stop& stop);
    bool takes_files = false;  // words without an option
    std::vector<CommandDefault> defaults = {};
    std::vector<std::string_view> without = {};  // options with its bit that it does not take

    bool takes(const Option& option) const {
        return option.commands & command && std::ranges::count(without, option.name) == 0;
    }
};
inline CommandRow with_files(CommandRow row) {
    row.takes_files = true;
    return row;
}
inline CommandRow with_options(CommandRow row, std::vector<CommandDefault> defaults,
                               std::vector<std::string_view> without = {}) {
    row.defaults = std::move(defaults), row.without = std::move(without);
    return row;
}

extern const CommandRow kTrainRow, kFinetuneRow, kLrFindRow, kPlanRow, kTuneRow, kEvalRow,
    kPredictRow, kCheckRow, kPackRow, kCoordinatorRow, kHealthRow, kDoctorRow, kTokenRow,
    kModelsRow, kPageRow, kExportRow, kImportRow, kBenchTrainRow, kBenchKernelsRow,
    kBenchAllreduceRow, kBenchDataRow, kManRow, kCompletionRow;

// Every command, in the order of --help; the first is the default.
inline constexpr const CommandRow* kCommands[] = {
    &kTrainRow,     &kFinetuneRow, &kLrFindRow,     &kPlanRow,         &kTuneRow,
    &kEvalRow,      &kPredictRow,  &kCheckRow,      &kPackRow,         &kCoordinatorRow,
    &kHealthRow,    &kDoctorRow,   &kTokenRow,      &kModelsRow,       &kPageRow,
    &kExportRow,    &kImportRow,   &kBenchTrainRow, &kBenchKernelsRow, &kBenchAllreduceRow,
    &kBenchDataRow, &kManRow,      &kCompletionRow,
};

// train, in a job that was joined; also for tests. Blocks; returns the exit status; throws Error.
int train_in_job(JobSession& job);

// A learning rate and the loss of the step that was done with it.
struct RatePoint {
    double lr, loss;
};
// What lr-find makes of a run: where the smoothed loss is least, and where it falls most for a
// factor of the rate.
struct RateSearch {
    std::vector<RatePoint> smooth = {};
    size_t least = 0, steepest = 0;
    double fall = 0, scatter = 0;  // of the loss: from the start to the least; of single batches
    // A loss that only scatters (normally, 120 steps) looks so with a probability of 0.0017.
    bool is_clear() const { return fall > 2 * scatter; }
};
RateSearch search_rate(const std::vector<RatePoint>& points);

// An option's help, with the command's default in brackets.
std::string help_text(const Option& option, const CommandRow& row);

using Environment = std::map<std::string, std::string>;

// Throws Error: unknown command or option (with the nearest one), a value that does not fit, two
// environment variables that disagree.
CommandLine parse_command_line(const std::vector<std::string>& words,
                               const Environment& environment);

// RANK, WORLD_SIZE, MASTER_ADDR and their like of Open MPI, Slurm and Kubernetes: rank, world,
// local-rank and coord where no option gave them. Throws Error where two disagree.
void apply_launcher(CommandLine& line, const Environment& environment);
// The variables of this process but those that are options, here or of a launcher: "NAME=value".
std::vector<std::string> plain_environment();

}  // namespace convoy
