// log_queue.h — lines of the control thread: it queues them, and another thread prints them. So a
// terminal or pipe that nobody reads (Ctrl-S, `| less`, a stuck log driver) stops no heartbeat.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "src/base/clock.h"
#include "src/base/log.h"

namespace convoy {

// Refused strangers in the log: a port scanner must not fill it.
class Refusals {
 public:
    // The line to log for a refusal at `now`; "": nothing. At most ten lines are logged per minute.
    // The first line of a minute says how many were left out before.
    std::string line(Clock::time_point now, const std::string& text);

 private:
    static constexpr int kMost = 10;
    Clock::time_point minute_;
    int lines_ = 0, left_out_ = 0;
};

class LogQueue {
 public:
    explicit LogQueue(Log& log) : log_(log), thread_([this] { print(); }) {}
    ~LogQueue();  // prints the lines that wait; blocks as long as the log does
    // The same as in Log, from any thread. Never blocks: if too many lines wait, the oldest lines
    // are dropped and counted.
    template <class... Parts>
    void info(const Parts&... parts) {
        push({false, cat(parts...)});
    }
    template <class... Parts>
    void notice(const Parts&... parts) {
        push({true, cat(parts...)});
    }

    static inline std::atomic<int64_t> queued{};  // lines of all queues, for tests

 private:
    struct Line {
        bool is_notice;
        std::string text;
    };
    void push(Line line);
    void print();

    Log& log_;
    std::mutex mutex_;  // guards what follows
    std::condition_variable wake_;
    std::deque<Line> lines_;
    uint64_t dropped_ = 0;  // since the last line was printed
    bool closing_ = false;
    std::thread thread_;
};

}  // namespace convoy
