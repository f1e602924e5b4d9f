// thread_pool.h — the threads that share one op's work.
//
//   for_each(n, fn)   calls fn(task, thread) for task 0 … n−1 and returns when all are done
//
// Thread t of T begins with the tasks [t·n/T, (t+1)·n/T), so it finds the rows of the last op in
// its own cache; then it takes what is left of others' shares, for a processor may be taken away
// for milliseconds. What a task gives must not depend on its thread: then the same number of
// threads gives the same bits. The caller is thread 0. Workers wait for the next op with a short
// spin (ops of one step follow each other within microseconds), then sleep: decoding and the
// network share these processors. One caller at a time; pools are independent, so two backends may
// live in one process.
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

// While one lives, this thread takes and gives subnormal numbers (below 2^-126) as 0, as the tile
// unit always does: arithmetic on them takes many times as long.
class FlushSubnormals {
 public:
    explicit FlushSubnormals(bool flushes = true);
    ~FlushSubnormals();
    FlushSubnormals(const FlushSubnormals&) = delete;

 private:
    const uint64_t before_;
};

class ThreadPool {
 public:
    // flushes: tasks run under FlushSubnormals, on every thread.
    explicit ThreadPool(int threads, bool flushes = false);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const { return int(workers_.size()) + 1; }

    // If calls throw, the caller gets the first error, when all tasks were called.
    template <class Fn>
    void for_each(int n, Fn&& fn) {
        using Plain = std::remove_reference_t<Fn>;
        run(
            n, [](void* f, int task, int thread) { (*static_cast<Plain*>(f))(task, thread); },
            const_cast<void*>(static_cast<const void*>(&fn)));
    }

    // fn(begin, end) on contiguous ranges, cut at multiples of `grain`, a few a thread; ranges of
    // less than `grain` are not worth waking a thread for.
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

    struct alignas(64) Share {
        std::atomic<int> taken{0};  // tasks of it
    };

    const bool flushes_;
    std::vector<Share> shares_;
    std::vector<std::thread> workers_;
    // The job; written by the caller before started_ is raised, read by workers after.
    Call call_ = nullptr;
    void* fn_ = nullptr;
    int n_ = 0;
    bool stop_ = false;
    std::exception_ptr error_;  // the first of the job
    std::atomic<bool> failed_{false};
    std::atomic<uint32_t> started_{0};   // jobs handed out
    std::atomic<uint32_t> finished_{0};  // workers done with the current job
};

}  // namespace convoy
