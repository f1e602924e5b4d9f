// probe.cpp — how long a message takes over each edge of the ring, and how wide the edge is.
//
// One edge is timed at a time, so that they do not share what they may have in common (a switch, a
// core). The left end measures both directions by its own clock: a short message and its answer
// give the latency; a long one and its short answer, less the latency, give the bandwidth.
#include <algorithm>
#include <chrono>

#include "net/ring.h"
#include "src/base/median.h"

namespace convoy {

namespace {

constexpr int kPings = 20;
constexpr size_t kTrialBytes = 256 << 10;  // a first guess at the bandwidth
constexpr size_t kLongestBytes = 32 << 20;
constexpr double kLongSeconds = 0.03;  // of a message long enough to forget how it began

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

// A few bytes to the peer and back again.
void Ring::ping(int peer, bool first) {
    if (first) send_small(wire::Type::probe, peer, {});
    receive_small(wire::Type::probe, peer, {});
    if (!first) send_small(wire::Type::probe, peer, {});
}

// `bytes` of whatever is in the outbox, one way; the receiver answers with a few.
static void push_long(Link& link, std::span<const std::byte> block, size_t bytes) {
    for (; bytes > 0; bytes -= std::min(bytes, block.size()))
        link.send_all(block.first(std::min(bytes, block.size())));
}
static void pull_long(Link& link, std::span<std::byte> block, size_t bytes) {
    for (; bytes > 0; bytes -= std::min(bytes, block.size()))
        link.receive_all(block.first(std::min(bytes, block.size())));
}

// Both directions of the edge from here (the left end) to the peer; from the right end the same
// exchange without a clock. Returns latency and forward bandwidth in `[0]`, backward in `[1]`.
std::array<EdgeTiming, 2> Ring::probe(int peer, bool left) {
    std::vector<double> pings;
    for (int i = 0; i < kPings; ++i) {
        const auto start = Clock::now();
        ping(peer, left);
        pings.push_back(seconds_since(start) / 2);
    }
    const double latency = median(pings);

    std::array<EdgeTiming, 2> both;
    for (const bool forward : {true, false}) {
        uint64_t bytes = kTrialBytes;
        double rate = 0;
        for (int round = 0; round < 2; ++round) {
            float length = float(bytes >> 10);  // in KB: small enough to be exact
            if (left) send_small(wire::Type::probe, peer, std::span(&length, 1));
            if (!left) receive_small(wire::Type::probe, peer, std::span(&length, 1));
            bytes = std::min(uint64_t(length) << 10, uint64_t(kLongestBytes));
            const auto start = Clock::now();
            if (left == forward) {
                push_long(link(peer), outbox_, bytes);
                sent_ += bytes;
                receive_small(wire::Type::probe, peer, {});
            } else {
                pull_long(link(peer), inbox_, bytes);
                moved_ += bytes;
                send_small(wire::Type::probe, peer, {});
            }
            rate = double(bytes) / std::max(seconds_since(start) - latency, 1e-9);
            bytes = std::clamp(uint64_t(rate * kLongSeconds), uint64_t(kTrialBytes),
                               uint64_t(kLongestBytes));
        }
        EdgeTiming& timing = both[forward ? 0 : 1];
        timing.from = at(forward ? position_ : peer);
        timing.to = at(forward ? peer : position_);
        timing.latency_seconds = latency;
        timing.bytes_per_second = rate;
    }
    return both;
}

std::vector<EdgeTiming> Ring::measure_edges() {
    if (world() == 1) return {};
    ++number_;
    const int edges = world() == 2 ? 1 : world();  // two ranks share one edge
    std::vector<std::array<EdgeTiming, 2>> timings(static_cast<size_t>(edges));
    // The edge to the left neighbour and the one to the right, in the order of the edges.
    for (int edge = 0; edge < edges; ++edge) {
        const int right = (edge + 1) % world();
        if (position_ == edge) timings[size_t(edge)] = probe(right, true);
        if (position_ == right) probe(edge, false);
    }
    for (int edge = 0; edge < edges; ++edge)
        broadcast(std::as_writable_bytes(std::span(timings[size_t(edge)])), at(edge));
    std::vector<EdgeTiming> list;
    for (const auto& both : timings) list.insert(list.end(), both.begin(), both.end());
    return list;
}

}  // namespace convoy
