// log_queue.h — lines of the control thread: it queues them, and a thread of its own prints them. A
// terminal or pipe that nobody reads (Ctrl-S, `| less`, a stuck log driver) stops no heartbeat.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "src/base/log.h"

namespace convoy {

class LogQueue {
 public:
    explicit LogQueue(Log& log) : log_(log), thread_([this] { print(); }) {}
    ~LogQueue();  // prints the lines that wait; blocks as long as the log does
    // As of Log, from any thread. Neither blocks: where too many lines wait, the oldest are dropped
    // and counted.
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
