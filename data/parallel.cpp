// parallel.cpp — see parallel.h.
#include "data/parallel.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <future>
#include <vector>

#include "src/base/text.h"

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

ProgressBar::ProgressBar(Log& log, std::string what, uint64_t total)
    : log_(log),
      what_(std::move(what)),
      total_(std::max<uint64_t>(total, 1)),
      is_terminal_(isatty(STDOUT_FILENO)) {}

void ProgressBar::add(uint64_t done) {
    std::lock_guard lock(mutex_);
    done_ += done;
    if (seconds_since(told_) < (is_terminal_ ? 0.2 : 10)) return;
    told_ = Clock::now();
    const double left = seconds_since(begin_) * double(total_ - std::min(done_, total_)) /
                        double(std::max<uint64_t>(done_, 1));
    const std::string text =
        cat(what_, ": ", done_ * 100 / total_, " %, ", clock_text(left), " left");
    if (is_terminal_)
        log_.transient(text);
    else
        log_.info(text);
}

}  // namespace convoy
