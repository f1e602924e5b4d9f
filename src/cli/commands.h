// commands.h — the commands of the program. Each is a row, which is defined in the command's file.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "src/base/log.h"
#include "src/config/config.h"
#include "src/job/job_session.h"

namespace convoy {

struct CommandRow {
    const char* name;  // as typed: "bench train"; "tune --plan" is tune with this option
    Command command;   // the command takes the options that have this bit
    const char* usage;
    const char* help;
    // Returns the exit status, or throws Error. A signal ends a command at once if it never calls
    // `stop`. A command that runs in a job must call it (run_in_job does so first).
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

// Trains in a job that was joined. Blocks; returns the exit status; throws Error. Also for tests.
int train_in_job(JobSession& job);

// A learning rate, and the loss of the step with this rate.
struct RatePoint {
    double lr, loss;
};
// The result of tune --lr: the points at which the smoothed loss is least, and at which it falls
// fastest per factor of the rate.
struct RateSearch {
    std::vector<RatePoint> smooth = {};
    size_t least = 0, steepest = 0;
    double fall = 0, scatter = 0;  // of the loss: from the start to the least; of single batches
    // Of 120 normally distributed losses without a trend, 0.17 % look clear.
    bool is_clear() const { return fall > 2 * scatter; }
};
RateSearch search_rate(const std::vector<RatePoint>& points);

// The texts of `trainer --help` and `trainer COMMAND --help` (help.cpp). all: with every option,
// not only the most important ones.
std::string program_help(bool all);
std::string command_help(const CommandRow& row, bool all);
std::string command_usage(const CommandRow& row);

using Environment = std::map<std::string, std::string>;

// Throws Error for an unknown command or option (naming the nearest one), a value that does not
// fit, and two environment variables that disagree.
CommandLine parse_command_line(const std::vector<std::string>& words,
                               const Environment& environment);
// Throws Error if options exclude or need each other (rules.cpp).
void check_command_line(const CommandLine& line);

// Sets rank, world, local-rank and coord from RANK, WORLD_SIZE, MASTER_ADDR and the variables of
// Open MPI, Slurm and Kubernetes, unless an option gave them. Throws Error if two disagree.
void apply_launcher(CommandLine& line, const Environment& environment);
// The variables of this process, "NAME=value", except options of the trainer and of launchers.
std::vector<std::string> plain_environment();

}  // namespace convoy
