// parallel.h — runs the same work on many things with several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <future>
#include <mutex>
#include <system_error>
#include <vector>

namespace convoy {

// Runs work(i) for each i below n. If calls throw, rethrows the exception of the lowest i.
inline void for_each_parallel(size_t n, int threads, const std::function<void(size_t)>& work) {
    std::atomic<size_t> next = 0;
    std::mutex mutex;
    size_t failed = n;
    std::exception_ptr failure;
    const auto run = [&] {
        for (size_t i; (i = next++) < n;) try {
                work(i);
            } catch (...) {
                next = n;  // the others finish what they have begun: every i before this one
                std::lock_guard lock(mutex);
                if (i < failed) failed = i, failure = std::current_exception();
            }
    };
    std::vector<std::future<void>> workers;
    for (size_t t = 1; t < std::min(size_t(std::max(threads, 1)), n); ++t) try {
            workers.push_back(std::async(std::launch::async, run));
        } catch (const std::system_error&) {
            break;  // fewer threads do the work
        }
    run();
    for (auto& worker : workers) worker.get();
    if (failure) std::rethrow_exception(failure);
}

}  // namespace convoy
