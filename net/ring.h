// ring.h — the collectives themselves, on the links of one rank. One thread; every call blocks.
//
// Each message between ranks is a wire::Header and the data of the collective. The header names
// the collective (type, number, generation) and its whole size; a neighbour in another one, or in
// one of another size, is an error that names it, before a byte of its data is used.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "net/communicator.h"
#include "net/link.h"
#include "net/wire.h"

namespace convoy {

// The ranks with which `rank` shares an edge, in a ring of the given order: its two neighbours,
// and its partners in recursive doubling.
std::vector<int> neighbours(int rank, const std::vector<int>& ring);

// A neighbour sent what it should not have.
struct PeerMistake : Error {
    PeerMistake(int rank_, const std::string& text) : Error(text), rank(rank_) {}
    int rank;
};

class Ring {
 public:
    enum class Wire { fp32, bf16 };

    // `ring`: ranks in ring order; `links` by rank. `moved` counts the bytes that arrive.
    Ring(int rank, std::vector<int> ring, std::vector<Link> links, uint32_t generation, Wire wire,
         std::atomic<uint64_t>& moved);

    // data = Σ over ranks, the same bits everywhere. With Wire::bf16 the data is rounded once a
    // hop, sums are in fp32; small sums always travel as fp32.
    void sum(std::span<float> data);
    // blocks[r] = rank r's, on every rank; this rank's own is there before. Sizes as all know them.
    // Rounded once by its owner with Wire::bf16, on the owner too.
    void gather(std::span<const std::span<float>> blocks);
    void gather_bytes(std::span<const std::span<std::byte>> blocks);
    void broadcast(std::span<std::byte> data, int root);
    void barrier();
    std::vector<EdgeTiming> measure_edges();  // probe.cpp

    // From any thread: ends what is going on, here and on the neighbours, by LinkLost.
    void shut() noexcept;
    uint64_t bytes_sent() const { return sent_; }

 private:
    struct Route;
    class Outlet;
    class Inlet;
    template <class PieceOf>
    void flow(const Route& route, PieceOf piece);
    std::array<EdgeTiming, 2> probe(int peer, bool left);
    void ping(int peer, bool first);
    void recursive_doubling(wire::Type type, std::span<float> data);
    void send_small(wire::Type type, int position, std::span<const float> data);
    void receive_small(wire::Type type, int position, std::span<float> data);
    void check(const wire::Header& expected, std::span<const std::byte, wire::kHeaderBytes> got,
               int position) const;

    int world() const { return int(ring_.size()); }
    int at(int position) const { return ring_[size_t((position % world() + world()) % world())]; }
    Link& link(int position) { return links_[size_t(at(position))]; }

    std::vector<int> ring_;
    int position_ = 0;
    std::vector<Link> links_;
    uint32_t generation_, number_ = 0;
    Wire wire_;
    std::vector<std::byte> outbox_, inbox_;
    std::atomic<uint64_t>& moved_;
    std::atomic<uint64_t> sent_{0};
};

}  // namespace convoy
