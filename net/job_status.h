// job_status.h — how the job ended, once and for all ranks alike: the first cause wins.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>

#include "src/base/check.h"

namespace convoy {

class JobStatus {
 public:
    // Only the first call counts. `lost`: the rank that was lost or failed, -1 if none.
    void end(const std::string& cause, int lost) noexcept {
        std::function<void()> then;
        {
            std::lock_guard lock(mutex_);
            if (ended_) return;
            if (!prepared_) cause_ = cause, lost_ = lost;
            error_ = std::make_exception_ptr(Error(cause_));
            ended_ = true;
            then = on_end_;
        }
        changed_.notify_all();
        if (then) then();
    }
    // The coordinator's rank has left in order. What is still under way may end well; whatever
    // breaks from now on, this is why.
    void prepare(const std::string& cause) noexcept {
        {
            std::lock_guard lock(mutex_);
            if (ended_ || prepared_) return;
            cause_ = cause;
            prepared_ = true;
        }
        changed_.notify_all();
    }
    bool ended() const { return ended_; }
    bool prepared() const { return prepared_; }
    int lost() const { return lost_; }
    std::string cause() const {
        std::lock_guard lock(mutex_);
        return cause_;
    }
    void check() const {
        if (ended_) std::rethrow_exception(error());
    }
    // The one Error that all who wait are handed; it lives as long as this JobStatus. Null before
    // the end.
    std::exception_ptr error() const {
        std::lock_guard lock(mutex_);
        return error_;
    }
    // Waits until the cause of the end is known, at most for `patience`; says whether it is.
    bool wait(std::chrono::milliseconds patience) {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, patience, [&] { return ended_ || prepared_; });
    }
    // `then` runs once, on the thread that ends the job; at once if it has ended already.
    void on_end(std::function<void()> then) {
        {
            std::lock_guard lock(mutex_);
            on_end_ = then;
            if (!ended_) return;
        }
        if (then) then();
    }

 private:
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::function<void()> on_end_;
    std::string cause_;
    std::exception_ptr error_;
    std::atomic<bool> ended_{false}, prepared_{false};
    std::atomic<int> lost_{-1};
};

}  // namespace convoy
