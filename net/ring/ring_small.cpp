// ring_small.cpp — collectives of few bytes. Each rank exchanges all bytes with log2(world) others,
// because for few bytes the steps cost more than the bytes.
#include <algorithm>
#include <bit>

#include "net/ring/reduce.h"
#include "net/ring/ring.h"

namespace convoy {

std::vector<int> neighbours(int rank, const std::vector<int>& ring) {
    const int world = int(ring.size());
    const int me = int(std::find(ring.begin(), ring.end(), rank) - ring.begin());
    const int whole = int(std::bit_floor(unsigned(world)));
    std::vector<int> ranks;
    const auto add = [&](int position) {
        const int other = ring[size_t((position + world) % world)];
        if (other != rank && std::find(ranks.begin(), ranks.end(), other) == ranks.end())
            ranks.push_back(other);
    };
    add(me - 1);
    add(me + 1);
    if (me >= whole) add(me - whole);
    if (me < whole && me + whole < world) add(me + whole);
    for (int bit = 1; me < whole && bit < whole; bit *= 2) add(me ^ bit);
    return ranks;
}

void Ring::barrier() { recursive_doubling(wire::Type::barrier, {}); }

// log2(world) exchanges of all data, with the partner at distance 1, 2, 4, … Both partners add the
// same two numbers, so both hold the same bits. Ranks beyond the largest power of two first give
// their data to a partner, and get the result at the end.
void Ring::recursive_doubling(wire::Type type, std::span<float> data) {
    ++number_;
    if (host_) host_->enter(number_, type, data.size_bytes());
    const Span span(record_.sent_track, type == wire::Type::barrier ? kTraceBarrier : kTraceSum,
                    number_, double(data.size_bytes()));
    float theirs[kSmallSum / sizeof(float)];
    const std::span<float> arrived = std::span(theirs).first(data.size());
    const int whole = int(std::bit_floor(unsigned(world())));
    if (position_ >= whole) {
        send_small(type, position_ - whole, data);
        return receive_small(type, position_ - whole, data);
    }
    if (position_ + whole < world()) {
        receive_small(type, position_ + whole, arrived);
        add(data.data(), theirs, data.size());
    }
    for (int bit = 1; bit < whole; bit *= 2) {
        send_small(type, position_ ^ bit, data);
        receive_small(type, position_ ^ bit, arrived);
        add(data.data(), theirs, data.size());
    }
    if (position_ + whole < world()) send_small(type, position_ + whole, data);
}

void Ring::send_small(wire::Type type, int position, std::span<const float> data) {
    stage_header({type, generation_, number_, data.size_bytes()});
    std::ranges::copy(std::as_bytes(data), outbox_.begin() + wire::kHeaderBytes);
    const std::span message = std::span(outbox_).first(wire::kHeaderBytes + data.size_bytes());
    const auto begin = Clock::now();
    link(position).send_all(message);
    if (Track* const track = record_.sent_track)
        track->add(kTraceSend, begin, Clock::now(), at(position), double(message.size()));
    record_.sent += message.size();
}

void Ring::receive_small(wire::Type type, int position, std::span<float> data) {
    const std::span message = std::span(inbox_).first(wire::kHeaderBytes + data.size_bytes());
    // The header first: a neighbour in a shorter sum will never send the rest of this one.
    const size_t got = link(position).receive_at_least(wire::kHeaderBytes, message);
    const auto begin = Clock::now();
    check({type, generation_, number_, data.size_bytes()}, message.first<wire::kHeaderBytes>(),
          position);
    link(position).receive_all(message.subspan(got));
    if (Track* const track = record_.received_track)
        track->add(kTraceReceive, begin, Clock::now(), at(position), double(message.size()));
    std::ranges::copy(message.subspan(wire::kHeaderBytes), std::as_writable_bytes(data).begin());
    record_.moved += message.size();
}

}  // namespace convoy
