// main.cpp — from the arguments to the exit status (help.cpp). Errors are printed only here.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <exception>
#include <filesystem>
#include <new>
#include <system_error>

#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/cli/commands.h"
#include "src/cli/stop_signal.h"

using namespace convoy;

struct OutOfMemory : std::bad_alloc {
    const char* what() const noexcept override {
        return "out of memory: the machine has no more, or a limit is reached (ulimit -v); use a "
               "smaller --batch or --size, or fewer --threads and --decode-threads";
    }
};
static std::atomic<bool> memory_was_short = false;

static void on_no_memory() {
    memory_was_short = true;
    throw OutOfMemory();
}

// An exception cannot reach main() from the network's threads, from noexcept functions (some of
// std::filesystem's), or if printing its text takes memory that is not there. This takes none.
static void on_terminate() {
    if (!memory_was_short) __gnu_cxx::__verbose_terminate_handler();
    for (const char* part : {"error: ", OutOfMemory().what(), "\n"})
        if (write(STDERR_FILENO, part, strlen(part)) < 0) break;
    _exit(1);
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
    log.set_draws(!config.quiet && !is_piped());  // the reader of a pipe may draw there
    for (const auto& [option, who] : line.given)
        if (!who.starts_with("--")) log.detail("--", option, " is from ", who);
}

// Returns the status, unless output is lost: then a closed pipe gives the status of its signal, and
// any other failure is an error. Training ignores lost output.
static int with_output(int status, Command command) {
    const bool whole = std::fflush(stdout) == 0 && !std::ferror(stdout);
    if (whole || command == kTrain || command == kFinetune) return status;
    if (is_piped()) return 128 + SIGPIPE;
    fail("standard output cannot be written: is the disk full?");
}

int main(int argc, char** argv) {
    // If the caller has closed a standard stream, the next file must not get its number.
    for (int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
        if (fcntl(stream, F_GETFD) == -1) open("/dev/null", O_RDWR);
    // A closed pipe or socket, and a limit on the file size, become errors of the write.
    for (int number : {SIGPIPE, SIGXFSZ}) signal(number, SIG_IGN);
    std::set_new_handler(on_no_memory);
    std::set_terminate(on_terminate);
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
        command = line.command;
        set_up(log, line);
        check_command_line(line);
        // The kernel drops signals to the first process of a container if it has no handler, so
        // stopping the container would take until it is killed. stop_signal() replaces this one.
        if (getpid() == 1)
            for (int number : {SIGINT, SIGTERM}) signal(number, [](int n) { _exit(128 + n); });
        // SIGUSR2 stays pending until a training run takes it (a request for a trace).
        sigset_t trace;
        sigemptyset(&trace), sigaddset(&trace, SIGUSR2);
        sigprocmask(SIG_BLOCK, &trace, nullptr);
        int status = row_of(command).run(line, log, stop_signal);
        const int caught = caught_signal();
        if (caught != SIGTERM && stop_signal() == SIGTERM && status == 128 + SIGTERM) {
            log.notice("signal ", caught, " counts as SIGTERM (", SIGTERM, ")");
            status = 128 + caught;
        }
        log.detail(fmt::format("took {:.2f} s of processors", double(clock()) / CLOCKS_PER_SEC));
        return with_output(status, command);
    } catch (const std::exception& error) {
        log.erase();
        // fmt::print says so at once.
        const auto* failure = dynamic_cast<const std::system_error*>(&error);
        if (failure && failure->code() == std::errc::broken_pipe && std::ferror(stdout))
            return 128 + SIGPIPE;
        const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&error);
        const bool loops = file && file->code() == std::errc::too_many_symbolic_link_levels;
        const bool no_thread =
            failure && failure->code() == std::errc::resource_unavailable_try_again;
        Log(stderr).error(
            cat(log.prefix(), in_red("error:", stderr), " "),
            no_thread ? std::string("no more threads can be created (ulimit -u, ulimit -v): give "
                                    "smaller --threads and --decode-threads")
            : loops   ? cat("'", file->path1().string(),
                            "' is a link that leads back to itself: remove it")
                      : error.what());
        return caught_signal() ? 128 + caught_signal() : 1;
    }
}
