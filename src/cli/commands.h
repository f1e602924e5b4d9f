// commands.h — the commands of the program: a table, and a function each in command_*.cpp.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "src/base/log.h"
#include "src/config/config.h"
#include "src/session/job_session.h"

namespace convoy {

// Returns the exit status, or throws Error. A signal ends a command at once if it never calls
// `stop`. A command that runs in a job must call it (run_in_job does so first).
using CommandFunction = int(const CommandLine& line, Log& log, const Stop& stop);
CommandFunction command_train, command_finetune, command_predict, command_export, command_import,
    command_check, command_pack, command_models, command_tune, command_lr_find, command_page,
    command_token, command_health, command_doctor, command_bench_kernels, command_bench_allreduce,
    command_bench_data;

// The part of a command after it has joined a job. Tests call train_in_job(), too.
using JobFunction = int(JobSession& job);
JobFunction train_in_job, eval_in_job, plan_in_job, bench_train_in_job;
template <JobFunction work>
int in_job(const CommandLine& line, Log& log, const Stop& stop) {
    return run_in_job(line, log, stop, work);
}

struct CommandRow {
    const char* name;  // as typed: "bench train"; "tune --plan" is tune with this option
    Command command;   // the command takes the options that have this bit
    CommandFunction* run;
    const char *usage, *help;
    bool takes_files = false;  // words without an option

    bool takes(const Option& option) const { return option.commands & command; }
};

// Every command, in the order of --help; the first is the default.
inline constexpr CommandRow kCommands[] = {
    {"train", kTrain, command_train, "[options]",
     "train a network, alone or as one of several ranks"},
    {"finetune", kFinetune, command_finetune, "WEIGHTS --data DIR [options]",
     "train further from the weights in a file, PyTorch's or Convoy's", true},
    {"eval", kEval, in_job<eval_in_job>, "--from RUN [options]",
     "loss and accuracy of a trained model on a data set"},
    {"predict", kPredict, command_predict, "--from RUN FILE|DIR...",
     "the five most likely classes of each image", true},
    {"export", kExport, command_export, "--from RUN --out FILE",
     "write a model to one file: safetensors or ONNX"},
    {"import", kImport, command_import, "FILE --out FILE [--model NAME] [--classes A,B]",
     "convert weights with torchvision's names for eval and predict", true},
    {"check", kCheck, command_check, "PATH",
     "decode every image of a data set and name the images that fail", true},
    {"pack", kPack, command_pack, "SRC OUT", "write any data set as shards, with their index",
     true},
    {"models", kModels, command_models, "[NAME]",
     "list the built-in networks, or print the text of one", true},
    {"tune", kTune, command_tune,
     "[options]   or: tune --plan [options], tune --lr [MAX] [options]",
     "measure the fastest settings; --plan: predict a job's speed; --lr: try learning rates"},
    {"tune --plan", kPlan, in_job<plan_in_job>, "[options]",
     "measure links and ranks, and predict the speed of a job for several options"},
    {"tune --lr", kLrFind, command_lr_find, "[MAX] [options]",
     "try learning rates up to MAX in --steps steps: at which ones the loss falls"},
    {"page", kPage, command_page, "RUN [--page ADDRESS:PORT]",
     "show a finished or a training run on a web page", true},
    {"token", kToken, command_token, "> FILE",
     "print a new secret for --token-file, which admits ranks to a job"},
    {"health", kHealth, command_health, "[--coord HOST:PORT | --port P]",
     "ask the rank on this machine for its state; exit status 0 or 1"},
    {"doctor", kDoctor, command_doctor, "[--coord HOST:PORT]",
     "check this machine, and say what to repair"},
    {"bench train", kBenchTrain, in_job<bench_train_in_job>, "[--model M --batch B --steps K]",
     "images per second of training steps, without input pipeline"},
    {"bench kernels", kBenchKernels, command_bench_kernels, "[--filter WORD]",
     "time each layer of real training steps, in percent of the machine's limit"},
    {"bench allreduce", kBenchAllreduce, command_bench_allreduce, "--world W [--bytes 1K,1M]",
     "speed of sums among local processes, or across hosts with --coord and --rank"},
    {"bench data", kBenchData, command_bench_data, "[--data DIR --size S]",
     "images per second of the input pipeline"},
};
inline const CommandRow& row_of(Command command) {
    return *std::ranges::find(kCommands, command, &CommandRow::command);
}

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
// Lines for --version: program, compiler, instruction sets, backends, libraries.
std::string version_text();

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

}  // namespace convoy
