// pause.h — notices that this process itself was stopped (SIGSTOP, a suspended machine): then the
// others were not silent, and they may have continued without it.
#pragma once

#include <time.h>

#include <algorithm>

#include "net/control/limits.h"
#include "src/base/clock.h"

namespace convoy {

// Call note() every second or more often. Two more clocks are compared, because Clock stands still
// while the machine is suspended.
class Pause {
 public:
    // The clock that counts suspension, and the wall clock.
    struct Outside {
        std::chrono::nanoseconds boot, wall;
        static Outside now() {
            timespec boot{};
            clock_gettime(CLOCK_BOOTTIME, &boot);
            return {std::chrono::seconds(boot.tv_sec) + std::chrono::nanoseconds(boot.tv_nsec),
                    std::chrono::system_clock::now().time_since_epoch()};
        }
    };
    // Returns whether the process was stopped since the last call.
    bool note(Clock::time_point now, const Outside& outside = Outside::now()) {
        const auto passed = std::max<std::chrono::nanoseconds>(
            {now - last_, outside.boot - outside_.boot, outside.wall - outside_.wall});
        const bool stopped = passed > kSilence * 3 / 5;
        if (stopped) stopped_at_ = now;
        last_ = now, outside_ = outside;
        return stopped;
    }
    bool lately(Clock::time_point now) {
        note(now);
        return now - stopped_at_ < 2 * kSilence;
    }

 private:
    Clock::time_point last_ = Clock::now(), stopped_at_ = last_ - 2 * kSilence;
    Outside outside_ = Outside::now();
};

}  // namespace convoy
