// stall.h — whom everybody waits for. Fed with the heartbeats, it knows who is inside a collective,
// who has not come to it yet, and for how long. No sockets here.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "net/wire.h"

namespace convoy {

class StallWatch {
 public:
    using Clock = std::chrono::steady_clock;

    StallWatch() = default;
    StallWatch(std::vector<std::string> addresses, std::chrono::milliseconds patience,
               Clock::time_point now);

    void beat(int rank, const wire::Beat& beat, Clock::time_point now);
    // "step 812: all wait for rank 2 (10.0.0.7:29401), in data since 41 s", once some rank has
    // waited in a collective for `patience` with nothing done and no byte moved; then again after
    // twice that time, four times, … Nothing otherwise: a rank that computes for an hour while
    // nobody waits for it is no news.
    std::optional<std::string> report(Clock::time_point now);

    int world() const { return int(ranks_.size()); }
    // "at step 812 in backward", the last that was heard of a rank; "" if nothing was.
    std::string last_seen(int rank) const;

 private:
    struct Rank {
        std::string address;
        wire::Beat beat;
        Clock::time_point heard, moved;
    };
    std::string describe(int rank, Clock::time_point now) const;

    std::vector<Rank> ranks_;
    std::chrono::milliseconds patience_{30'000}, next_{30'000};
};

}  // namespace convoy
