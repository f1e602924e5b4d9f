// process.h — runs the trainer, for tests of the whole program.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "src/plan/tune.h"  // free_port
#include "tests/device.h"
#include "tests/support.h"

namespace convoy {

inline std::string read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// The trainer that was built with these tests.
inline std::string trainer_path() {
    const char* name = on_gpu() ? "trainer" : "trainer-simt";
    return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
}

// A run of the trainer in the folder; stdout and stderr go to a file. The destructor kills it if it
// still runs. Words such as CONVOY_PREFLIGHT=off become variables of its environment.
class Process {
 public:
    Process(const TempDir& folder, const std::string& name, const std::vector<std::string>& words)
        : output_(folder / (name + ".out")) {
        std::vector<std::string> all = {trainer_path()};
        all.insert(all.end(), words.begin(), words.end());
        std::vector<char*> argv;
        for (std::string& word : all)
            if (!word.starts_with("CONVOY_")) argv.push_back(word.data());
        argv.push_back(nullptr);
        const int out = open(output_.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
        REQUIRE(out >= 0);
        pid_ = fork();
        REQUIRE(pid_ >= 0);
        if (pid_ == 0) {
            dup2(out, STDOUT_FILENO);
            dup2(out, STDERR_FILENO);
            for (std::string& word : all)
                if (word.starts_with("CONVOY_")) putenv(word.data());
            if (chdir(folder.path().c_str()) == 0) execv(argv[0], argv.data());
            _exit(127);
        }
        close(out);
    }
    ~Process() {
        if (pid_ > 0) ::kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
    }
    Process(const Process&) = delete;

    void kill(int signal) { ::kill(pid_, signal); }
    pid_t pid() const { return pid_; }
    std::string output() const { return read_file(output_); }

    // The exit status (128 + n if signal n ended it). If it still runs after `seconds` of an idle
    // machine, the test fails, and the result is -1.
    int wait(double seconds = 60) {
        int status = 0;
        if (!eventually([&] { return waitpid(pid_, &status, WNOHANG) != 0; }, seconds)) {
            FAIL_CHECK("the trainer still runs, so its exit status counts as -1: it had ",
                       seconds * crowding(), " s, which are ", seconds,
                       " s of an idle machine. It hangs, or it needs a less busy machine. Output: ",
                       output());
            return -1;
        }
        pid_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    // Waits until the output contains `text`; false after `seconds`.
    bool wait_for(const std::string& text, double seconds = 60) {
        return eventually([&] { return contains(output(), text); }, seconds);
    }

 private:
    std::string output_;
    pid_t pid_ = -1;
};

// Runs to the end; returns the exit status and the output.
inline std::pair<int, std::string> run_trainer(const std::vector<std::string>& words) {
    TempDir folder;
    Process process(folder, "run", words);
    const int status = process.wait();
    return {status, process.output()};
}

}  // namespace convoy
