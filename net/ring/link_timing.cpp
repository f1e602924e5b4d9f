// link_timing.cpp — measures latency and bandwidth of each link of the ring.
//
// One link is timed at a time, as links may share a switch or a core. The left end measures both
// directions by its own clock: a short message and its answer give the latency; a long one and its
// short answer, less the latency, give the bandwidth.
#include <algorithm>

#include "net/ring/ring.h"
#include "src/base/clock.h"

namespace convoy {

static constexpr int kPings = 20;
static constexpr size_t kTrialBytes = 256 << 10;  // a first guess at the bandwidth
static constexpr size_t kLongestBytes = 32 << 20;
// Of a message long enough for TCP to reach its speed; shorter if there are many links.
static constexpr double kLongSeconds = 0.03, kAllSeconds = 0.5;

// Times the link between this rank and the rank at position `peer`. Both ends call it, and only the
// result of the left end counts: forward in `[0]`, backward in `[1]`.
std::array<LinkTiming, 2> Ring::time_link(int peer, bool left) {
    std::vector<double> pings;
    for (int i = 0; i < kPings; ++i) {
        const auto start = Clock::now();
        if (left) send_small(wire::Type::timing, peer, {});
        receive_small(wire::Type::timing, peer, {});
        if (!left) send_small(wire::Type::timing, peer, {});
        pings.push_back(seconds_since(start) / 2);
    }
    const double latency = median(pings);

    std::array<LinkTiming, 2> both;
    for (const bool forward : {true, false}) {
        uint64_t bytes = kTrialBytes;
        double rate = 0;
        for (int round = 0; round < 2; ++round) {
            uint64_t length = bytes;
            const std::span own(&length, 1);
            if (left) send_small(wire::Type::timing, peer, std::as_bytes(own));
            if (!left) receive_small(wire::Type::timing, peer, std::as_writable_bytes(own));
            bytes = std::min(length, uint64_t(kLongestBytes));
            const auto start = Clock::now();
            const bool sends = left == forward;
            for (size_t rest = bytes; rest > 0;) {  // whatever is in the outbox
                const size_t n = std::min(rest, outbox_.size());
                sends ? link(peer).send_all(std::span(outbox_).first(n))
                      : link(peer).receive_all(std::span(inbox_).first(n));
                (sends ? record_.sent : record_.moved) += n;
                rest -= n;
            }
            sends ? receive_small(wire::Type::timing, peer, {})
                  : send_small(wire::Type::timing, peer, {});
            rate = double(bytes) / std::max(seconds_since(start) - latency, 1e-9);
            const double seconds = std::min(kLongSeconds, kAllSeconds / world());
            bytes = std::clamp<uint64_t>(uint64_t(rate * seconds), kTrialBytes, kLongestBytes);
        }
        both[forward ? 0 : 1] = {at(forward ? position_ : peer), at(forward ? peer : position_),
                                 latency, rate};
    }
    return both;
}

std::vector<LinkTiming> Ring::measure_links() {
    if (world() == 1) return {};
    ++number_;
    const int links = world() == 2 ? 1 : world();                  // two ranks share one link
    std::vector<std::array<LinkTiming, 2>> timings(ring_.size());  // by the rank of the left end
    // The link to the left neighbour and the one to the right, in the order of the links.
    for (int link = 0; link < links; ++link) {
        const int right = (link + 1) % world();
        if (position_ == link) timings[size_t(at(link))] = time_link(right, true);
        if (position_ == right) time_link(link, false);
    }
    gather_each(timings);
    std::vector<LinkTiming> list;
    for (int link = 0; link < links; ++link)
        for (LinkTiming& timing : timings[size_t(at(link))]) {
            const int one = at(link), other = at((link + 1) % world());
            const bool is_theirs = std::minmax(timing.from, timing.to) == std::minmax(one, other);
            if (!is_theirs || !(timing.bytes_per_second > 0))
                throw PeerMistake(one, "its timing of a link is damaged");
            list.push_back(timing);
        }
    return list;
}

}  // namespace convoy
