// main.cpp — from the arguments to the exit status. The one place where errors are printed.
//
//   0 done   1 error, one sentence on stderr   128+n after signal n, with a checkpoint
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>

#include "src/cli/commands.h"
#include "src/cli/version.h"

using namespace convoy;

// Signals belong to the process: the one piece of global state.
static std::atomic<int> caught = 0;  // threads ask too

static void on_signal(int number) {
    if (caught) _exit(128 + number);  // the second one ends the process at once
    caught = number;
}

// The first SIGINT or SIGTERM, else 0. They are caught from the first call on: a command that never
// asks just ends.
static int stop_signal() {
    static const bool installed = [] {
        struct sigaction action {};
        action.sa_handler = on_signal;
        action.sa_flags = SA_RESTART;
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

int main(int argc, char** argv) {
    // A standard stream that the caller has closed: its number must not go to the next file opened.
    for (int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
        if (fcntl(stream, F_GETFD) == -1) open("/dev/null", O_RDWR);
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
        const CommandRow& row = **std::ranges::find(kCommands, line.command, &CommandRow::command);
        log.set_quiet(line.config.quiet || line.config.json);
        if (getpid() == 1) end_on_signals();
        // A closed pipe or socket, and a limit on the size of files, are errors of the write.
        for (int number : {SIGPIPE, SIGXFSZ}) signal(number, SIG_IGN);
        // Waits until a training run asks for it (TrainRun::wish).
        sigset_t trace;
        sigemptyset(&trace), sigaddset(&trace, SIGUSR2);
        sigprocmask(SIG_BLOCK, &trace, nullptr);
        return row.run(line, log, stop_signal);
    } catch (const std::exception& error) {
        std::fflush(stdout);
        Log(stderr).notice(log.prefix(), "error: ", error.what());
        return stop_signal() ? 128 + stop_signal() : 1;
    }
}
