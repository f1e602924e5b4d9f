// main.cpp — words in, exit status out. The one place where errors are caught.
//
//   0 done   1 error, one sentence on stderr   128+n after signal n, with a checkpoint
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "src/cli/commands.h"
#include "src/cli/signals.h"
#include "src/cli/version.h"

extern char** environ;  // POSIX

using namespace convoy;

static std::map<std::string, std::string> environment() {
    std::map<std::string, std::string> variables;
    for (char** entry = environ; *entry; ++entry) {
        const std::string text = *entry;
        const size_t equals = text.find('=');
        if (equals != std::string::npos)
            variables[text.substr(0, equals)] = text.substr(equals + 1);
    }
    return variables;
}

static int run_command(const CommandLine& line, Log& log) {
    switch (line.command) {
        case kTrain: return command_train(line, log, stop_signal);
        case kPlan: return command_plan(line, log, stop_signal);
        case kEval: return command_eval(line, log, stop_signal);
        case kPredict: return command_predict(line, log, stop_signal);
        case kCheck: return command_check(line, log);
        case kCoordinator: return command_coordinator(line, log, stop_signal);
        case kModels: return command_models(line);
        case kExport: return command_export(line, log);
        case kImport: return command_import(line, log);
        case kBenchTrain: return command_bench_train(line, log, stop_signal);
        case kBenchAllreduce: return command_bench_allreduce(line, log, stop_signal);
        case kBenchData: return command_bench_data(line, log);
        case kBenchKernels: return command_bench_kernels(line);
    }
    return 1;
}

int main(int argc, char** argv) {
    Log log;
    try {
        const std::vector<std::string> words(argv + 1, argv + argc);
        if (!words.empty() && words[0] == "--version") {
            fmt::print("{}", version_text());
            return 0;
        }
        const CommandLine line = parse_command_line(words, environment());
        if (!line.help.empty()) {
            fmt::print("{}", line.help);
            return 0;
        }
        ignore_broken_pipes();
        constexpr unsigned kPolls =
            kTrain | kPlan | kEval | kPredict | kCoordinator | kBenchTrain | kBenchAllreduce;
        if (line.command & kPolls) install_signal_handlers();
        return run_command(line, log);
    } catch (const std::exception& error) {
        std::fflush(stdout);
        Log(stderr).notice(log.prefix(), "error: ", error.what());
        return stop_signal() ? 128 + stop_signal() : 1;
    }
}
