// worker.h — runs the blocks of one system thread. Inside the emulator; kernels see emulator.h.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "kernels/simt/runtime.h"
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace convoy::simt {

// Tells the address sanitizer which bytes must not be touched, and when the stack changes.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kSanitized = true;
inline void allow(const void* p, size_t bytes) { __asan_unpoison_memory_region(p, bytes); }
inline void forbid(const void* p, size_t bytes) { __asan_poison_memory_region(p, bytes); }
inline void leave_stack(void** fake, const void* to, size_t bytes) {
    __sanitizer_start_switch_fiber(fake, to, bytes);
}
inline void arrive_on_stack(void* fake, const void** from, size_t* bytes) {
    __sanitizer_finish_switch_fiber(fake, from, bytes);
}
#else
constexpr bool kSanitized = false;
inline void allow(const void*, size_t) {}
inline void forbid(const void*, size_t) {}
inline void leave_stack(void**, const void*, size_t) {}
inline void arrive_on_stack(void*, const void**, size_t*) {}
#endif

// xorshift64* (Vigna 2016): the order of threads needs speed, not quality.
class Order {
 public:
    explicit Order(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull | 1) {}
    uint32_t below(uint32_t n) {
        state_ ^= state_ >> 12, state_ ^= state_ << 25, state_ ^= state_ >> 27;
        return uint32_t((state_ * 0x2545F4914F6CDD1Dull >> 32) * n >> 32);
    }

 private:
    uint64_t state_;
};

class Worker {
 public:
    Worker();
    ~Worker();
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;

    // Runs one block to its end; throws Error if it does something undefined.
    void run_block(const Launch& launch, const std::function<void()>& body, uint3 block,
                   uint64_t seed);

    // Called by the fibre that runs.
    void barrier(int number, int threads, Here here);
    void wait_until(const std::function<bool()>& over, const char* name, Here here);
    void something_came();
    void copy_later(std::function<void()>&& work) { late_.push_back(std::move(work)); }
    void warp_operation(unsigned mask, void* lane, WarpWork work, const char* name, Here here);
    [[noreturn]] void fault(std::string&& text);
    void* shared(const void* tag, const char* name, size_t bytes, size_t align);
    std::string place() const { return place(now_); }  // "kernel …, block …, thread …"

 private:
    enum class State { kReady, kAtBarrier, kInWarp, kWaiting, kDone };
    struct Thread {
        State state;
        int fibre;  // -1: not begun
        Here here;  // where it waits
        const char* name;
        unsigned mask;
        void* lane;
        WarpWork work;
        int barrier, meeting;  // its number, and for how many threads it is
    };

    // A variable in shared memory. The kGap bytes before and after it must not be touched.
    struct Variable {
        const void* tag;
        const char* name;
        char* data;
        size_t bytes;
    };

    static void enter(boost::context::detail::transfer_t from);
    char* stack_of(int fibre) const;  // its lowest address
    int idle_fibre();
    uint3 index_of(int thread) const;
    void resume(int thread);
    void suspend();
    void make_ready(int thread);
    void drop_fibres();
    void begin_shared(size_t dynamic_bytes);
    std::string end_shared();
    // Whether thread `number` waits in the same warp operation.
    bool meets(const Thread& thread, int number) const;
    std::string place(int thread) const;
    std::string coordinates(int thread) const;
    std::string whereabouts(int thread) const;
    std::string deadlock() const;

    const Launch* launch_ = nullptr;
    const std::function<void()>* body_ = nullptr;
    Order order_{0};
    std::vector<Thread> threads_;
    std::vector<int> ready_;
    int now_ = 0;  // the thread that runs
    static constexpr int kBarriers = 16;
    int at_barrier_[kBarriers];
    std::vector<std::function<void()>> late_;  // copies on their way
    std::string fault_;

    std::unique_ptr<char, void (*)(void*)> arena_;  // all shared memory of a block
    size_t arena_used_ = 0, shared_bytes_ = 0;
    std::vector<Variable> variables_;

    char* stacks_ = nullptr;
    std::vector<boost::context::detail::fcontext_t> fibres_;
    std::vector<int> idle_;
    boost::context::detail::fcontext_t scheduler_ = nullptr;
    const void* scheduler_stack_ = nullptr;  // for the sanitizer
    size_t scheduler_stack_bytes_ = 0;
};

struct Graph {
    std::vector<std::function<cudaError_t()>> steps;
    bool spoiled = false;  // a call was not allowed during capture
};

struct Stream {
    explicit Stream(int workers);
    std::mutex mutex;  // the default stream has many users
    ThreadPool pool;
    std::vector<std::unique_ptr<Worker>> workers;
    uint64_t launches = 0;
    std::unique_ptr<Graph> captured;                 // while it is captured
    std::vector<std::function<cudaError_t()>> late;  // delayed copies
};
Stream& stream_of(cudaStream_t stream);  // the default stream for null

}  // namespace convoy::simt
