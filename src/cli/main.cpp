// main.cpp — from the arguments to the exit status (help.cpp lists them). The one place
// where errors are printed.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <exception>
#include <system_error>

#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/cli/commands.h"
#include "src/cli/version.h"

using namespace convoy;

// Signals belong to the process: the one piece of global state.
static std::atomic<int> caught = 0;  // threads ask too

static void on_signal(int number) {
    if (number == SIGHUP) {  // a terminal that closes may send several
        int none = 0;
        caught.compare_exchange_strong(none, SIGTERM);
        return;
    }
    if (caught) _exit(128 + number);  // the second one ends the process at once
    caught = number;
}

// The first SIGINT or SIGTERM, else 0. SIGHUP counts as SIGTERM, unless nohup ignores it. They are
// caught from the first call on: a command that never asks just ends.
static int stop_signal() {
    static const bool installed = [] {
        struct sigaction action {};
        action.sa_handler = on_signal;
        action.sa_flags = SA_RESTART;
        struct sigaction hangup {};
        sigaction(SIGHUP, nullptr, &hangup);
        if (hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
        return sigaction(SIGINT, &action, nullptr) == 0 &&
               sigaction(SIGTERM, &action, nullptr) == 0;
    }();
    return installed ? caught.load() : 0;
}

// The first process of a container has no default action for signals: without a handler the kernel
// drops them, and stopping the container takes until its kill. Commands that ask stop_signal() set
// theirs instead.
static void end_on_signals() {
    for (int number : {SIGINT, SIGTERM}) signal(number, [](int n) { _exit(128 + n); });
}

static Environment environment() {
    Environment variables;
    for (char** entry = environ; *entry; ++entry) {
        const std::string text = *entry;
        const size_t equals = text.find('=');
        if (equals != std::string::npos)
            variables[text.substr(0, equals)] = text.substr(equals + 1);
    }
    return variables;
}

static bool is_piped() {
    struct stat out {};
    return fstat(STDOUT_FILENO, &out) == 0 && (S_ISFIFO(out.st_mode) || S_ISSOCK(out.st_mode));
}

static void set_up(Log& log, const CommandLine& line) {
    const Config& config = line.config;
    if (config.json) log.use_stderr();
    log.set_quiet(config.quiet || (config.json && !config.verbose));
    log.set_verbose(config.verbose);
    log.set_draws(!config.quiet && !is_piped());  // what reads a pipe may draw there itself
    for (const auto& [option, who] : line.given)
        if (!who.starts_with("--")) log.detail("--", option, " is from ", who);
}

// The status, unless what was printed is lost: a reader that has enough of a pipe ends the program
// as its signal would. Training and the coordinator do what matters elsewhere.
static int with_output(int status, Command command) {
    const bool whole = std::fflush(stdout) == 0 && !std::ferror(stdout);
    if (whole || command == kTrain || command == kFinetune || command == kCoordinator)
        return status;
    if (is_piped()) return 128 + SIGPIPE;
    fail("standard output cannot be written; is the disk full?");
}

int main(int argc, char** argv) {
    // A standard stream that the caller has closed: its number must not go to the next file opened.
    for (int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
        if (fcntl(stream, F_GETFD) == -1) open("/dev/null", O_RDWR);
    // A closed pipe or socket, and a limit on the size of files, are errors of the write.
    for (int number : {SIGPIPE, SIGXFSZ}) signal(number, SIG_IGN);
    Log log;
    Command command{};  // none yet
    try {
        const std::vector<std::string> words(argv + 1, argv + argc);
        if (!words.empty() && words[0] == "--version") {
            fmt::print("{}", version_text());
            return with_output(0, command);
        }
        const CommandLine line = parse_command_line(words, environment());
        if (!line.help.empty()) {
            fmt::print("{}", wrapped(line.help, terminal_width(stdout)));
            return with_output(0, command);
        }
        const CommandRow& row = **std::ranges::find(kCommands, line.command, &CommandRow::command);
        command = row.command;
        set_up(log, line);
        check_command_line(line);
        if (getpid() == 1) end_on_signals();
        // Waits until a training run asks for it (TrainRun::wish).
        sigset_t trace;
        sigemptyset(&trace), sigaddset(&trace, SIGUSR2);
        sigprocmask(SIG_BLOCK, &trace, nullptr);
        const int status = row.run(line, log, stop_signal);
        log.detail(fmt::format("took {:.2f} s of processors", double(clock()) / CLOCKS_PER_SEC));
        return with_output(status, command);
    } catch (const std::exception& error) {
        log.erase();
        // fmt::print says so at once.
        const auto* failure = dynamic_cast<const std::system_error*>(&error);
        if (failure && failure->code() == std::errc::broken_pipe && std::ferror(stdout))
            return 128 + SIGPIPE;
        Log(stderr).error(cat(log.prefix(), in_red("error:", stderr), " "), error.what());
        return stop_signal() ? 128 + stop_signal() : 1;
    }
}
