// net_support.h — ranks as threads of one process, connected over loopback at a free port.
#pragma once

#include <poll.h>

#include <atomic>
#include <exception>
#include <functional>
#include <future>
#include <thread>
#include <vector>

#include "net/control/log_queue.h"
#include "net/ring/communicator.h"
#include "tests/support.h"

namespace convoy {

// The same of a job: with every line that its threads have queued.
struct Diary : Quiet {
    std::string text() {
        eventually([] { return LogQueue::queued == 0; });
        return Quiet::text();
    }
};

// Waits until an Asio socket has bytes, an end of connection or a caller; false after 20 s.
inline bool has_news(auto& socket) {
    pollfd at{socket.native_handle(), POLLIN, 0};
    return poll(&at, 1, 20'000) == 1;
}

// The coordinator's port, which rank 0 passes to the others.
class Port {
 public:
    void set(uint16_t port) { promise_.set_value(port); }
    // Makes get() throw, unless the port is set.
    void fail(std::exception_ptr why) noexcept {
        try {
            promise_.set_exception(why);
        } catch (const std::future_error&) {}
    }
    uint16_t get() { return future_.get(); }

 private:
    std::promise<uint16_t> promise_;
    std::shared_future<uint16_t> future_ = promise_.get_future().share();
};

// How a rank of a test joins at this port; 0: the system picks one, for rank 0.
inline JoinOptions rank_options(int rank, int world, uint16_t port = 0) {
    JoinOptions options;
    options.host = "127.0.0.1";
    options.port = port;
    options.rank = rank;
    options.world = world;
    options.join_timeout = std::chrono::seconds(20);
    options.heartbeat = std::chrono::milliseconds(100);
    return options;
}

// The same if rank 0 passes the port: rank 0 sets it when it listens, the others wait for it.
inline JoinOptions rank_options(int rank, int world, Port& port) {
    JoinOptions options = rank_options(rank, world);
    if (rank == 0)
        options.listening = [&port](uint16_t p) { port.set(p); };
    else
        options.port = port.get();
    return options;
}

inline void finish(const Job& job) {
    job.communicator->barrier();
    job.communicator->leave();
}

// Joins, sums with all ranks, and leaves.
inline void sum_once(const JoinOptions& options, Log& log, const std::function<int()>& stop = {}) {
    Job job = join(options, log, stop);
    std::vector<float> one{1};
    job.communicator->allreduce_sum(one).get();
    CHECK(one[0] == float(job.communicator->world()));
    finish(job);
}

// Rank 0, in a separate thread. It serves the coordinator, and waits until the other ranks have
// come for sum_once(), or for the end of the scope.
class RankZero {
 public:
    RankZero(int world, Diary& diary, const Access& access = {})
        : thread_([this, world, &diary, access] {
              try {
                  JoinOptions options = rank_options(0, world, port_);
                  options.access = access;
                  sum_once(options, diary.log, [this] { return stop_.load(); });
              } catch (const Error&) {
                  CHECK(stop_ != 0);
              }
          }) {
        eventually([&] { return contains(diary.text(), " joined, missing "); });
    }
    ~RankZero() {
        stop_ = 1;
        thread_.join();
    }
    uint16_t port() { return port_.get(); }

 private:
    std::atomic<int> stop_{0};
    Port port_;
    std::thread thread_;
};

// Runs `work` on each rank of a new job, then rethrows the error of the lowest rank.
inline void run_ranks(int world, const std::function<void(JoinOptions&)>& adjust,
                      const std::function<void(Job&)>& work) {
    Port port;
    Diary diary;
    std::vector<std::exception_ptr> failures(static_cast<size_t>(world));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world; ++rank)
        threads.emplace_back([&, rank] {
            try {
                JoinOptions options = rank_options(rank, world, port);
                options.heartbeat = std::chrono::milliseconds(200);
                adjust(options);
                Job job = join(options, diary.log);
                work(job);
                finish(job);
            } catch (...) {
                failures[size_t(rank)] = std::current_exception();
                if (rank == 0) port.fail(std::current_exception());
            }
        });
    for (std::thread& thread : threads) thread.join();
    INFO(diary.text());
    for (const std::exception_ptr& failure : failures)
        if (failure) std::rethrow_exception(failure);
}

}  // namespace convoy
