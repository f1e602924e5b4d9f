// job_status.h — the phases of a rank, and whether and why its ring, or the whole job, has ended:
// the first cause counts, on all ranks.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "net/control/wire.h"
#include "src/base/check.h"

namespace convoy {

// What a rank is doing, for the ranks that wait for it.
enum class Phase {
    kStart,
    kMeasure,
    kData,
    kForward,
    kBackward,
    kReduce,
    kUpdate,
    kAverage,
    kValidation,
    kCheckpoint
};

// A rank was lost, so the ring is broken. regroup() forms a new ring of the remaining ranks.
struct RingBroken : Error {
    using Error::Error;
};
// An error that every rank sees (NaN in summed gradients). It ends every job, even an elastic one.
struct JobError : Error {
    using Error::Error;
};
// The other ranks continue without this rank, because it was silent for too long.
struct LeftBehind : Error {
    using Error::Error;
};

// The other ranks may live, but this rank did not reach them for long. It saves its state.
struct CutOff : Error {
    using Error::Error;
};

// Any thread may call any of these functions.
class JobStatus {
 public:
    // Only the first call counts, except that the end of the job may follow the end of a ring.
    // `lost`: the rank that was lost or failed, -1 if none.
    void end(const std::string& cause, int lost, wire::End what = wire::End::job) noexcept {
        std::function<void()> then;
        {
            std::lock_guard lock(mutex_);
            if (error_ && !(what_ == wire::End::ring && what != wire::End::ring)) return;
            if (!cause_known_ || error_) cause_ = cause, lost_ = lost;
            what_ = what;
            error_ = what == wire::End::job       ? std::make_exception_ptr(Error(cause_))
                     : what == wire::End::ring    ? std::make_exception_ptr(RingBroken(cause_))
                     : what == wire::End::cut_off ? std::make_exception_ptr(CutOff(cause_))
                                                  : std::make_exception_ptr(LeftBehind(cause_));
            cause_known_ = ended_ = true;
            then = on_end_;
        }
        changed_.notify_all();
        if (then) then();
    }
    // A new ring is going to be formed. Returns why the last one broke; "": it did not. Throws the
    // Error with which the job has ended.
    std::string begin_again() {
        std::lock_guard lock(mutex_);
        if (error_ && what_ != wire::End::ring) std::rethrow_exception(error_);
        error_ = nullptr;
        ended_ = cause_known_ = false;
        lost_ = -1;
        return std::exchange(cause_, "");
    }
    // The rank that serves the coordinator has left in order. Collectives in flight may still
    // succeed. If one fails from now on, this departure is the cause.
    void set_cause(const std::string& cause) noexcept {
        {
            std::lock_guard lock(mutex_);
            if (cause_known_) return;
            cause_ = cause;
            cause_known_ = true;
        }
        changed_.notify_all();
    }
    bool ended() const { return ended_; }
    bool job_has_ended() const {
        std::lock_guard lock(mutex_);
        return error_ && what_ != wire::End::ring;
    }
    bool cause_known() const { return cause_known_; }
    int lost_rank() const { return lost_; }
    // The Error of every collective after the end, or null. It lives as long as this object.
    std::exception_ptr error() const {
        std::lock_guard lock(mutex_);
        return error_;
    }
    void throw_if_ended() const {
        if (ended_) std::rethrow_exception(error());
    }
    // Blocks until the cause is known, at most for `patience`.
    void wait_for_cause(std::chrono::milliseconds patience) {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, patience, [&] { return bool(cause_known_); });
    }
    // `then` runs on the thread that ends the job or a ring; at once if it has ended already.
    void on_end(std::function<void()> then) {
        {
            std::lock_guard lock(mutex_);
            on_end_ = then;
            if (!error_) return;
        }
        if (then) then();
    }

 private:
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::function<void()> on_end_;
    std::string cause_;
    std::exception_ptr error_;
    wire::End what_ = wire::End::job;
    std::atomic<bool> ended_{false}, cause_known_{false};
    std::atomic<int> lost_{-1};
};

}  // namespace convoy
