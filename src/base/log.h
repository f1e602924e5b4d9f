// log.h — the log of one rank: whole lines on one stream, each with the rank in front. There is no
// global log, so two ranks can live in one process.
#pragma once

#include <cstdio>
#include <mutex>
#include <string>

#include "src/base/check.h"
#include "src/base/clock.h"

namespace convoy {

class Log {
 public:
    explicit Log(std::FILE* out = stdout) : out_(out) {}  // null: nothing is written

    // Starts each line with `prefix`, "[rank 2] ". Without it (a job of one rank) lines have none.
    void set_prefix(std::string prefix) {
        std::lock_guard lock(mutex_);
        prefix_ = std::move(prefix);
    }
    std::string prefix() const { return prefix_; }
    void set_quiet(bool quiet) { quiet_ = quiet; }
    // Prints details too, and starts each line with the seconds since this object was constructed.
    void set_verbose(bool verbose) { verbose_ = verbose; }
    // For --json, which needs stdout.
    void use_stderr() { out_ = stderr; }
    // Enables draw(), which needs stderr to be a terminal.
    void set_draws(bool draws) { draws_ = draws; }
    bool draws() const;

    // Progress; not printed with --quiet.
    template <class... Parts>
    void info(const Parts&... parts) {
        if (!quiet_) write(cat(parts...));
    }
    // Something is wrong, or the program corrected something. Always printed.
    template <class... Parts>
    void notice(const Parts&... parts) {
        write(cat(parts...));
    }
    // Why the process ends, after `lead`: "[rank 2] error: ".
    void error(const std::string& lead, const std::string& why) { write(why, lead); }
    // Decisions and times; printed only with --verbose.
    template <class... Parts>
    void detail(const Parts&... parts) {
        if (verbose_) write(cat(parts...));
    }
    // Draws a bar and a text on stderr, if it is a terminal. The next line or bar replaces them.
    void draw(double part, const std::string& text);
    void erase();

 private:
    void write(const std::string& text, std::string lead = {});

    std::FILE* out_;
    std::mutex mutex_;
    std::string prefix_;
    const Clock::time_point begin_ = Clock::now();
    bool quiet_ = false, verbose_ = false, draws_ = false, drawn_ = false;
};

}  // namespace convoy
