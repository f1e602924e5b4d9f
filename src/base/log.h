// log.h — the log of one rank: whole lines to one stream, each with the rank in front.
//
// There is no global log: each user is handed a Log, so two ranks can live in one process.
#pragma once

#include <cstdio>
#include <mutex>
#include <string>

#include "src/base/check.h"

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
    // Text that the next line overwrites (a progress bar); for terminals only.
    void transient(const std::string& text) {
        std::lock_guard lock(mutex_);
        fmt::print(out_, "\r\033[K{}", text);
        std::fflush(out_);
        transient_ = true;
    }

 private:
    void write(const std::string& text) {
        std::lock_guard lock(mutex_);
        std::string all = transient_ ? "\r\033[K" : "";
        for (size_t at = 0; at <= text.size();) {
            const size_t end = std::min(text.find('\n', at), text.size());
            all += prefix_ + text.substr(at, end - at) + "\n";
            at = end + 1;
        }
        transient_ = false;
        std::fwrite(all.data(), 1, all.size(), out_);  // one write: lines of ranks do not mix
        std::fflush(out_);
    }

    std::FILE* out_;
    std::mutex mutex_;
    std::string prefix_;
    bool quiet_ = false, transient_ = false;
};

}  // namespace convoy
