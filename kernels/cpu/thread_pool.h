// thread_pool.h — the threads that share the work of one op.
//
//   for_each(n, fn)   calls fn(task, thread) for task 0 … n−1 and returns when all are done
//
// Thread t of T begins with the tasks [t·n/T, (t+1)·n/T), so it finds the rows of the last op in
// its cache. Then it takes remaining tasks of other threads, because the OS may deschedule a thread
// for milliseconds. The result of a task must not depend on its thread. The caller is thread 0; a
// pool has one caller at a time. Idle workers spin for a few microseconds (the next op usually
// follows), then sleep, because decoding and the network share these processors.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <type_traits>
#include <vector>

namespace convoy {

// The fewest floats worth waking a thread for: 64 KB.
constexpr size_t kGrain = 16384;

class ThreadPool {
 public:
    // flushes: tasks treat subnormal numbers (below 2^-126) as 0, as AMX always does: arithmetic on
    // them is many times slower. idle: for_each() calls nothing.
    explicit ThreadPool(int threads, bool flushes = false, bool idle = false);
    ~ThreadPool() { stop(); }
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const { return int(workers_.size()) + 1; }

    // If calls throw, for_each() rethrows the first error after all tasks were called.
    template <class Fn>
    void for_each(int n, Fn&& fn) {
        using Plain = std::remove_reference_t<Fn>;
        run(
            n, [](void* f, int task, int thread) { (*static_cast<Plain*>(f))(task, thread); },
            const_cast<void*>(static_cast<const void*>(&fn)));
    }

    // Calls fn(begin, end) on ranges that are cut at multiples of `grain`, a few per thread.
    template <class Fn>
    void for_ranges(size_t n, size_t grain, Fn&& fn) {
        const size_t grains = (n + grain - 1) / grain;
        const size_t most = size() > 1 ? size_t(size()) * 4 : 1;
        const int parts = int(grains < most ? grains : most);
        for_each(parts, [&](int task, int) {
            const size_t begin = grains * task / parts * grain;
            const size_t end = grains * (task + 1) / parts * grain;
            fn(begin, end < n ? end : n);
        });
    }

 private:
    using Call = void (*)(void* fn, int task, int thread);
    void run(int n, Call call, void* fn);
    void work(int thread);
    void do_share(int thread);
    void stop();

    struct alignas(64) Share {
        std::atomic<int> taken{0};  // tasks of this share
    };

    const bool flushes_, idle_;
    std::vector<Share> shares_;
    std::vector<std::thread> workers_;
    // The job, written by the caller before it increments started_, read by workers after that.
    Call call_ = nullptr;
    void* fn_ = nullptr;
    int n_ = 0;
    std::atomic<bool> stop_{false};
    std::exception_ptr error_;  // the first error of the job
    std::atomic<bool> failed_{false};
    std::atomic<uint32_t> started_{0};  // jobs started
    // Workers inside the current job. kClosed is added when the caller finds no more tasks: a
    // worker that wakes up after that skips the job, and the caller does not wait for it.
    static constexpr uint32_t kClosed = 1u << 31;
    std::atomic<uint32_t> inside_{kClosed};
};

}  // namespace convoy
