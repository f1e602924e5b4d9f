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
    const char* name;  // as it is typed: "bench train"
    Command command;   // the options it takes are those with this bit
    const char* usage;
    const char* help;
    // Returns the exit status, or throws Error. A command that never asks `stop` ends at once when
    // a signal comes; one that runs in a job must ask it (run_in_job does so first).
    int (*run)(const CommandLine& line, Log& log, const Stop& stop);
    bool takes_files = false;  // words without an option
};
constexpr CommandRow with_files(CommandRow row) {
    row.takes_files = true;
    return row;
}

extern const CommandRow kTrainRow, kFinetuneRow, kLrFindRow, kPlanRow, kTuneRow, kEvalRow,
    kPredictRow, kCheckRow, kPackRow, kReportRow, kCoordinatorRow, kHealthRow, kDoctorRow,
    kTokenRow, kModelsRow, kPageRow, kWatchRow, kExportRow, kImportRow, kBenchTrainRow,
    kBenchKernelsRow, kBenchAllreduceRow, kBenchDataRow, kManRow, kCompletionRow;

// Every command, in the order of --help; the first is the default.
inline constexpr const CommandRow* kCommands[] = {
    &kTrainRow,        &kFinetuneRow,       &kLrFindRow,    &kPlanRow,   &kTuneRow,
    &kEvalRow,         &kPredictRow,        &kCheckRow,     &kPackRow,   &kReportRow,
    &kCoordinatorRow,  &kHealthRow,         &kDoctorRow,    &kTokenRow,  &kModelsRow,
    &kPageRow,         &kWatchRow,          &kExportRow,    &kImportRow, &kBenchTrainRow,
    &kBenchKernelsRow, &kBenchAllreduceRow, &kBenchDataRow, &kManRow,    &kCompletionRow,
};

// train, in a job that was joined; also for tests. Blocks; returns the exit status; throws Error.
int train_in_job(JobSession& job);

// An option's help, with its default in brackets.
std::string help_text(const Option& option);

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
