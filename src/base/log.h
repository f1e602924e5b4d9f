// log.h — the log of one rank: whole lines to one stream, each with the rank in front.
//
// There is no global log: each user is handed a Log, so two ranks can live in one process.
#pragma once

#include <cstdio>
#include <mutex>
#include <string>

#include "src/base/check.h"
#include "src/base/clock.h"

namespace convoy {

class Log {
 public:
    explicit Log(std::FILE* out = stdout) : out_(out) {}

    // "[rank 2] " from now on; nothing before each line while unset (a job of one rank).
    void set_prefix(std::string prefix) {
        std::lock_guard lock(mutex_);
        prefix_ = std::move(prefix);
    }
    std::string prefix() const { return prefix_; }  // for the error with which a rank ends
    void set_quiet(bool quiet) { quiet_ = quiet; }
    // Details too, and each line begins with the seconds since this object was made.
    void set_verbose(bool verbose) { verbose_ = verbose; }
    // To stderr, where standard output is for programs (--json).
    void use_stderr() { out_ = stderr; }
    // Whether draw() draws, where stderr is a terminal.
    void set_draws(bool draws) { draws_ = draws; }
    bool draws() const;

    // A line of news. Left out under --quiet.
    template <class... Parts>
    void info(const Parts&... parts) {
        if (!quiet_) write(cat(parts...));
    }
    // A line that matters: something is wrong, or was done about something wrong. Never left out.
    template <class... Parts>
    void notice(const Parts&... parts) {
        write(cat(parts...));
    }
    // Why a process ends, behind "[rank 2] error: ".
    void error(const std::string& lead, const std::string& why) { write(why, lead); }
    // A decision or a time that --verbose alone tells.
    template <class... Parts>
    void detail(const Parts&... parts) {
        if (verbose_) write(cat(parts...));
    }
    // A bar, full to this part, and a text, on stderr; the next line or bar replaces them. On
    // terminals only.
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
