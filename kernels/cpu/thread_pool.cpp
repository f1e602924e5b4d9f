#include "kernels/cpu/thread_pool.h"

#include <utility>

#include "src/base/check.h"

namespace convoy {
namespace {

// A few microseconds: longer than the gap between two ops, far shorter than a decoded image.
constexpr int kSpins = 400;

void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Blocks until `value` differs from `old`: spins first, then sleeps.
void wait_change(const std::atomic<uint32_t>& value, uint32_t old) {
    for (int i = 0; i < kSpins; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        pause_briefly();
    }
    value.wait(old, std::memory_order_acquire);
}

// The control register of floating-point arithmetic, and its bits that flush subnormal numbers.
#if defined(__x86_64__)
constexpr uint64_t kFlush = 0x8040;  // results, and inputs
uint64_t float_mode() { return __builtin_ia32_stmxcsr(); }
void set_float_mode(uint64_t mode) { __builtin_ia32_ldmxcsr(unsigned(mode)); }
#elif defined(__aarch64__)
constexpr uint64_t kFlush = 1 << 24;
uint64_t float_mode() {
    uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
void set_float_mode(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
constexpr uint64_t kFlush = 0;
uint64_t float_mode() { return 0; }
void set_float_mode(uint64_t) {}
#endif

// During its lifetime this thread treats subnormal numbers as 0.
struct FlushSubnormals {
    const uint64_t before = float_mode();
    explicit FlushSubnormals(bool flushes) {
        if (flushes) set_float_mode(before | kFlush);
    }
    ~FlushSubnormals() { set_float_mode(before); }
};

}  // namespace

ThreadPool::ThreadPool(int threads, bool flushes, bool idle)
    : flushes_(flushes), idle_(idle), shares_(size_t(threads)) {
    for (int t = 1; t < threads; ++t) try {
            workers_.emplace_back([this, t] { work(t); });
        } catch (const std::exception& error) {
            stop();
            fail("only ", t, " of ", threads, " threads can be created (", error.what(),
                 "); give --threads ", t);
        }
}

void ThreadPool::stop() {
    stop_ = true;
    started_.fetch_add(1, std::memory_order_release);
    started_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(int n, Call call, void* fn) {
    if (idle_) return;
    call_ = call, fn_ = fn, n_ = n;
    for (Share& share : shares_) share.taken.store(0, std::memory_order_relaxed);
    if (n > 1 && !workers_.empty()) {
        inside_.store(0, std::memory_order_release);
        started_.fetch_add(1, std::memory_order_release);
        started_.notify_all();
    }
    do_share(0);
    uint32_t inside = inside_.fetch_or(kClosed, std::memory_order_acq_rel) | kClosed;
    for (; inside != kClosed; inside = inside_.load(std::memory_order_acquire))
        wait_change(inside_, inside);
    if (failed_.exchange(false)) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::do_share(int thread) {
    const FlushSubnormals mode(flushes_);
    const int64_t n = n_, threads = size();
    for (int64_t i = 0; i < threads; ++i) {
        const int64_t owner = (thread + i) % threads, end = n * (owner + 1) / threads;
        const auto next = [&] {
            return n * owner / threads +
                   shares_[size_t(owner)].taken.fetch_add(1, std::memory_order_relaxed);
        };
        for (int64_t task = next(); task < end; task = next()) {
            try {
                call_(fn_, int(task), thread);
            } catch (...) {
                if (!failed_.exchange(true)) error_ = std::current_exception();
            }
        }
    }
}

void ThreadPool::work(int thread) {
    for (uint32_t seen = 0;;) {
        wait_change(started_, seen);
        seen = started_.load(std::memory_order_acquire);
        if (stop_) return;
        uint32_t inside = inside_.load(std::memory_order_acquire);
        while (!(inside & kClosed) && !inside_.compare_exchange_weak(inside, inside + 1)) {}
        if (inside & kClosed) continue;
        do_share(thread);
        if (inside_.fetch_sub(1, std::memory_order_release) == kClosed + 1) inside_.notify_one();
    }
}

}  // namespace convoy
