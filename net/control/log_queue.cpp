#include "net/control/log_queue.h"

#include <utility>

#include "net/control/limits.h"

namespace convoy {

std::string Refusals::line(Clock::time_point now, const std::string& text) {
    if (now - minute_ >= std::chrono::minutes(1)) minute_ = now, lines_ = 0;
    if (lines_ == kMost) return ++left_out_, "";
    if (++lines_ == kMost) return cat(text, " (others in this minute are only counted)");
    if (left_out_ == 0) return text;
    return cat(text, " (", std::exchange(left_out_, 0),
               " others were refused since the last line)");
}

LogQueue::~LogQueue() {
    {
        std::lock_guard lock(mutex_);
        closing_ = true;
    }
    wake_.notify_one();
    thread_.join();
}

void LogQueue::push(Line line) {
    {
        std::lock_guard lock(mutex_);
        if (lines_.size() == kMostLines)
            lines_.pop_front(), ++dropped_;
        else
            ++queued;
        lines_.push_back(std::move(line));
    }
    wake_.notify_one();
}

void LogQueue::print() {
    for (std::unique_lock lock(mutex_);;) {
        wake_.wait(lock, [this] { return closing_ || !lines_.empty(); });
        if (lines_.empty()) return;
        const Line line = std::move(lines_.front());
        lines_.pop_front();
        const uint64_t dropped = std::exchange(dropped_, 0);
        lock.unlock();
        if (dropped > 0) log_.notice(dropped, " lines were dropped: nobody read this log in time");
        line.is_notice ? log_.notice(line.text) : log_.info(line.text);
        --queued;
        lock.lock();
    }
}

}  // namespace convoy
