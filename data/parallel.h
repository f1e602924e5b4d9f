// parallel.h — the same work on many things by several threads, and a line that says how far it is.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "src/base/clock.h"
#include "src/base/log.h"

namespace convoy {

// Runs work(i) for each i below n on several threads; throws what the failing one with the
// lowest i threw.
void for_each_parallel(size_t n, int threads, const std::function<void(size_t)>& work);

// "indexing 1000 shards: 37 %, 1:10 left": a bar on a terminal, else a line every ten seconds.
class ProgressBar {
 public:
    ProgressBar(Log& log, std::string what, uint64_t total);
    void add(uint64_t done);

 private:
    Log& log_;
    const std::string what_;
    const uint64_t total_;
    const bool is_terminal_;
    const Clock::time_point begin_ = Clock::now();
    std::mutex mutex_;
    uint64_t done_ = 0;
    Clock::time_point told_ = begin_;
};

}  // namespace convoy
