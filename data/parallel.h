// parallel.h — the same work on many things by several threads.
#pragma once

#include <cstddef>
#include <functional>

namespace convoy {

// Runs work(i) for each i below n on several threads; throws what the failing one with the
// lowest i threw.
void for_each_parallel(size_t n, int threads, const std::function<void(size_t)>& work);

}  // namespace convoy
