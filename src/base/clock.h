// clock.h — seconds on the steady clock, which never jumps, Unix seconds, and a median.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

#include "src/base/check.h"

namespace convoy {

using Clock = std::chrono::steady_clock;

inline double seconds_between(Clock::time_point begin, Clock::time_point end) {
    return std::chrono::duration<double>(end - begin).count();
}
inline double seconds_since(Clock::time_point begin) {
    return seconds_between(begin, Clock::now());
}

inline double unix_seconds() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
}

// The middle value, or the mean of the two middle values.
inline double median(std::vector<double> values) {
    ENSURE(!values.empty(), "a median of nothing");
    std::ranges::sort(values);
    const size_t half = values.size() / 2;
    return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace convoy
