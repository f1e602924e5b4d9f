// stall.h — which rank all others wait for. From the heartbeats it knows which ranks are inside a
// collective, which have not reached it yet, and for how long. No sockets here.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "net/control/wire.h"
#include "src/base/clock.h"

namespace convoy {

class StallWatch {
 public:
    StallWatch() = default;
    StallWatch(const std::vector<wire::Member>& ranks, std::chrono::milliseconds patience,
               Clock::time_point now);

    void heard(int rank, const wire::Heartbeat& beat, Clock::time_point now);
    // "step 812: all wait for rank 2 (10.0.0.7:29401), in data since 41 s" if some rank has waited
    // in a collective for `patience` without ending it or moving a byte. Otherwise "", even if a
    // rank computes for long: then no rank waits for it.
    std::string stall(Clock::time_point now) const;
    // The ranks that some rank waits for in this way: the ranks that do not wait themselves, or are
    // silent. Empty if all ranks wait in the same collective.
    std::vector<int> waited_for(Clock::time_point now) const;
    // The same text for the log: once, then again after twice that time, four times, …
    std::optional<std::string> report(Clock::time_point now);

    // "last heard of 0.7 s ago, at step 812 in backward". The rank may be further by now.
    std::string last_seen(int rank, Clock::time_point now) const;

 private:
    struct Rank {
        wire::Member member;
        wire::Heartbeat beat;
        Clock::time_point heard, moved;
    };
    std::chrono::milliseconds longest_wait(Clock::time_point now) const;
    std::string describe(int rank, Clock::time_point now) const;

    std::vector<Rank> ranks_;
    std::chrono::milliseconds patience_{30'000}, next_{30'000};
};

}  // namespace convoy
