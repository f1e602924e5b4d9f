// ring_small.cpp — collectives for which the steps cost more than the bytes: each rank exchanges
// data with log2(world) others. README.md compares the ways to sum.
#include <algorithm>
#include <bit>
#include <set>

#include "net/ring/reduce.h"
#include "net/ring/ring.h"

namespace convoy {

std::vector<int> neighbours(int rank, const std::vector<int>& ring) {
    const int world = int(ring.size());
    const int me = int(std::find(ring.begin(), ring.end(), rank) - ring.begin());
    const int whole = int(std::bit_floor(unsigned(world)));
    std::set<int> ranks;
    const auto add = [&](int position) { ranks.insert(ring[size_t((position + world) % world)]); };
    add(me - 1);
    add(me + 1);
    if (me >= whole) add(me - whole);
    if (me < whole && me + whole < world) add(me + whole);
    for (int bit = 1; me < whole && bit < whole; bit *= 2) add(me ^ bit);
    ranks.erase(rank);
    return {ranks.begin(), ranks.end()};
}

void Ring::barrier() { recursive_doubling(wire::Type::barrier, {}); }

// log2(world) exchanges of all data, with the partner at distance 1, 2, 4, … Both partners add the
// same two numbers, so both hold the same bits. Ranks beyond the largest power of two first give
// their data to a partner, and get the result at the end. In a gather each byte is zero on all
// ranks except one, so the bits are united instead.
void Ring::recursive_doubling(wire::Type type, std::span<std::byte> data) {
    ++number_;
    if (host_) host_->enter(number_, type, data.size());
    const Span span(record_.sent_track,
                    type == wire::Type::barrier  ? kTraceBarrier
                    : type == wire::Type::gather ? kTraceGather
                                                 : kTraceSum,
                    number_, double(data.size()));
    alignas(float) std::byte theirs[kSmallSum];
    const std::span<std::byte> arrived = std::span(theirs).first(data.size());
    const auto receive = [&](int position) {
        receive_small(type, position, arrived);
        if (type == wire::Type::gather)
            for_blocks(data.data(), theirs, data.size(), [](std::byte& a, std::byte b) { a |= b; });
        else
            add(reinterpret_cast<float*>(data.data()), reinterpret_cast<const float*>(theirs),
                data.size() / sizeof(float));
    };
    const int whole = int(std::bit_floor(unsigned(world())));
    if (position_ >= whole) {
        send_small(type, position_ - whole, data);
        return receive_small(type, position_ - whole, data);
    }
    if (position_ + whole < world()) receive(position_ + whole);
    for (int bit = 1; bit < whole; bit *= 2) {
        send_small(type, position_ ^ bit, data);
        receive(position_ ^ bit);
    }
    if (position_ + whole < world()) send_small(type, position_ + whole, data);
}

void Ring::gather_small(std::span<const std::span<std::byte>> blocks, size_t bytes) {
    std::vector<std::byte> all(bytes);
    for (const bool first : {true, false}) {
        auto place = all.begin();
        for (int rank = 0; rank < world(); place += ptrdiff_t(blocks[size_t(rank++)].size()))
            if (const auto& block = blocks[size_t(rank)]; !first)
                std::copy_n(place, block.size(), block.begin());
            else if (rank == at(position_))
                std::ranges::copy(block, place);
        if (first) recursive_doubling(wire::Type::gather, all);
    }
}

void Ring::send_small(wire::Type type, int position, std::span<const std::byte> data) {
    stage_header({type, generation_, number_, data.size()});
    std::ranges::copy(data, outbox_.begin() + wire::kHeaderBytes);
    const std::span message = std::span(outbox_).first(wire::kHeaderBytes + data.size());
    const Span span(record_.sent_track, kTraceSend, at(position), double(message.size()));
    link(position).send_all(message);
    record_.sent += message.size();
}

void Ring::receive_small(wire::Type type, int position, std::span<std::byte> data) {
    const std::span message = std::span(inbox_).first(wire::kHeaderBytes + data.size());
    // The header first: a neighbour in a shorter sum will never send the rest of this one.
    const size_t got = link(position).receive_at_least(wire::kHeaderBytes, message);
    const Span span(record_.received_track, kTraceReceive, at(position), double(message.size()));
    check({type, generation_, number_, data.size()}, message.first<wire::kHeaderBytes>(), position);
    link(position).receive_all(message.subspan(got));
    std::ranges::copy(message.subspan(wire::kHeaderBytes), data.begin());
    record_.moved += message.size();
}

}  // namespace convoy
