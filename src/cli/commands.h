// commands.h — the commands of the program: each is one row, defined in the file of the command.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "src/base/log.h"
#include "src/config/config.h"
#include "src/job/job_session.h"

namespace convoy {

struct CommandRow {
    const char* name;  // as it is typed: "bench train"; "tune --plan": tune with this option
    Command command;   // the options it takes are those with this bit
    const char* usage;
    const char* help;
    // Returns the exit status, or throws Error. A command that never asks `stop` ends at once when
    // a signal comes; one that runs in a job must ask it (run_in_job does so first).
    int (*run)(const CommandLine& line, Log& log, const Stop& stop);
    bool takes_files = false;  // words without an option

    bool takes(const Option& option) const { return option.commands & command; }
};
inline CommandRow with_files(CommandRow row) {
    row.takes_files = true;
    return row;
}

extern const CommandRow kTrainRow, kFinetuneRow, kEvalRow, kPredictRow, kExportRow, kImportRow,
    kCheckRow, kPackRow, kModelsRow, kTuneRow, kPlanRow, kLrFindRow, kPageRow, kTokenRow,
    kHealthRow, kDoctorRow, kCoordinatorRow, kBenchTrainRow, kBenchKernelsRow, kBenchAllreduceRow,
    kBenchDataRow, kCompletionRow;

// Every command, in the order of --help; the first is the default.
inline constexpr const CommandRow* kCommands[] = {
    &kTrainRow,     &kFinetuneRow,    &kEvalRow,       &kPredictRow,      &kExportRow,
    &kImportRow,    &kCheckRow,       &kPackRow,       &kModelsRow,       &kTuneRow,
    &kPlanRow,      &kLrFindRow,      &kPageRow,       &kTokenRow,        &kHealthRow,
    &kDoctorRow,    &kCoordinatorRow, &kBenchTrainRow, &kBenchKernelsRow, &kBenchAllreduceRow,
    &kBenchDataRow, &kCompletionRow,
};

// train, in a job that was joined; also for tests. Blocks; returns the exit status; throws Error.
int train_in_job(JobSession& job);

// A learning rate and the loss of the step that was done with it.
struct RatePoint {
    double lr, loss;
};
// What tune --lr makes of a run: where the smoothed loss is least, and where it falls most for a
// factor of the rate.
struct RateSearch {
    std::vector<RatePoint> smooth = {};
    size_t least = 0, steepest = 0;
    double fall = 0, scatter = 0;  // of the loss: from the start to the least; of single batches
    // A loss that only scatters (normally, 120 steps) looks so with a probability of 0.0017.
    bool is_clear() const { return fall > 2 * scatter; }
};
RateSearch search_rate(const std::vector<RatePoint>& points);

// What `trainer --help` or, of a command, `trainer COMMAND --help` prints (help.cpp). all: every
// option instead of those that most people need.
std::string program_help(bool all);
std::string command_help(const CommandRow& row, bool all);
std::string command_usage(const CommandRow& row);

using Environment = std::map<std::string, std::string>;

// Throws Error: unknown command or option (with the nearest one), a value that does not fit, two
// environment variables that disagree.
CommandLine parse_command_line(const std::vector<std::string>& words,
                               const Environment& environment);
// Throws Error: options that exclude or need each other (rules.h).
void check_command_line(const CommandLine& line);

// RANK, WORLD_SIZE, MASTER_ADDR and their like of Open MPI, Slurm and Kubernetes: rank, world,
// local-rank and coord where no option gave them. Throws Error where two disagree.
void apply_launcher(CommandLine& line, const Environment& environment);
// The variables of this process but those that are options, here or of a launcher: "NAME=value".
std::vector<std::string> plain_environment();

}  // namespace convoy
