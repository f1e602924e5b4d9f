// clock.h — seconds on the one clock that never jumps.
#pragma once

#include <chrono>

namespace convoy {

using Clock = std::chrono::steady_clock;

inline double seconds_between(Clock::time_point begin, Clock::time_point end) {
    return std::chrono::duration<double>(end - begin).count();
}
inline double seconds_since(Clock::time_point begin) {
    return seconds_between(begin, Clock::now());
}

}  // namespace convoy
