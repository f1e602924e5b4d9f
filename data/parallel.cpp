// parallel.cpp — see parallel.h.
#include "data/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <future>
#include <mutex>
#include <vector>

namespace convoy {

void for_each_parallel(size_t n, int threads, const std::function<void(size_t)>& work) {
    std::atomic<size_t> next = 0;
    std::mutex mutex;
    size_t failed = n;
    std::exception_ptr failure;
    const auto run = [&] {
        for (size_t i; (i = next++) < n;) try {
                work(i);
            } catch (...) {
                next = n;  // the others end with what they have begun: all that is before this
                std::lock_guard lock(mutex);
                if (i < failed) failed = i, failure = std::current_exception();
            }
    };
    std::vector<std::future<void>> workers;
    for (size_t t = 0; t < std::min(size_t(std::max(threads, 1)), n); ++t)
        workers.push_back(std::async(std::launch::async, run));
    for (auto& worker : workers) worker.get();
    if (failure) std::rethrow_exception(failure);
}

}  // namespace convoy
