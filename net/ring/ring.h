// ring.h — the collectives, on the links of one rank. Used by one thread; every call blocks.
//
// Each message between ranks is a wire::Header and the data of the collective, in pieces. The
// header names the collective (type, number, generation) and its size. If a neighbour is in another
// collective, or in a collective of another size, an error names the neighbour before any of its
// data is used.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "net/control/wire.h"
#include "net/ring/communicator.h"
#include "net/ring/link.h"
#include "net/ring/shared_sum.h"

namespace convoy {

// The ranks with which `rank` shares a link, in a ring of the given order: its two neighbours,
// and its partners in recursive doubling.
std::vector<int> neighbours(int rank, const std::vector<int>& ring);

// The ranks of a ring, host by host (ring_order() keeps them together).
std::vector<std::vector<int>> hosts_of(const std::vector<int>& ring,
                                       const std::vector<wire::Member>& peers);

// A neighbour sent a message that does not belong to this collective.
struct PeerMistake : Error {
    PeerMistake(int rank_, const std::string& text) : Error(text), rank(rank_) {}
    int rank;
};

// What all rings of a rank count, in bytes with headers, the tracks of Communicator::record, and
// JoinOptions::limit.
struct RingRecord {
    std::atomic<uint64_t>& moved;  // sent and received
    const std::function<size_t(size_t)> limit;
    std::atomic<uint64_t> sent{0};
    std::atomic<Track*> sent_track{nullptr}, received_track{nullptr};
};

class Ring {
 public:
    // `ring`: ranks in ring order; `links` by rank; `bf16`: large sums travel as bf16.
    Ring(int rank, std::vector<int> ring, std::vector<Link> links, uint32_t generation, bool bf16,
         RingRecord& record);

    // From now on the ranks of a host (`peers`, by rank) sum in shared memory if all of them can
    // open it; then one rank per host is on the ring. All ranks call it before the first sum.
    // Returns the text for the log, and whether all ranks that have company on their host share.
    std::pair<std::string, bool> share_memory(const std::vector<wire::Member>& peers);

    // data = Σ over ranks, the same bits on every rank. With bf16 the data is rounded once a hop
    // and summed in fp32; small sums always travel as fp32.
    void sum(std::span<float> data);
    // blocks[r] = the block of rank r, on every rank. The caller fills this rank's own block. All
    // ranks know all sizes. If the ring's sums travel as bf16, blocks of `floats` do too, and are
    // rounded on their owner as well.
    void gather(std::span<const std::span<std::byte>> blocks, bool floats);
    // all[r] = the value of rank r.
    template <class T>
    void gather_each(std::vector<T>& all) {
        std::vector<std::span<std::byte>> blocks;
        for (T& one : all) blocks.push_back(std::as_writable_bytes(std::span(&one, 1)));
        gather(blocks, false);
    }
    void broadcast(std::span<std::byte> data, int root);
    void barrier();
    std::vector<LinkTiming> measure_links();  // link_timing.cpp

    // Any thread may call it. Ends the collective by LinkLost, on this rank and on its neighbours.
    void shut() noexcept;
    int around() const { return hosts_.empty() ? world() : int(hosts_.size()); }  // Communicator's

 private:
    class Flow;
    static constexpr size_t kSmallSum = Communicator::kExactBytes;
    // A hop takes as long as these bytes: 0.5 ms at 1 Gbit/s, 0.05 ms at 10.
    static constexpr size_t kHopBytes = 64 << 10;
    std::array<LinkTiming, 2> time_link(int peer, bool left);
    void sum_by_host(std::span<float> data);
    void sum_large(std::span<float> data);
    void sum_around(std::span<float> data);
    void halve_and_double(std::span<float> data, int whole);
    void recursive_doubling(wire::Type type, std::span<std::byte> data);
    void gather_small(std::span<const std::span<std::byte>> blocks, size_t bytes);
    void run(wire::Type type, size_t bytes, int sent, int received, int sums, bool bf16);
    void send_small(wire::Type type, int position, std::span<const std::byte> data);
    void receive_small(wire::Type type, int position, std::span<std::byte> data);
    std::span<const std::byte> stage_header(const wire::Header& header);
    void check(const wire::Header& expected, std::span<const std::byte, wire::kHeaderBytes> got,
               int position) const;

    int world() const { return int(ring_.size()); }
    int at(int position) const { return ring_[size_t((position % world() + world()) % world())]; }
    Link& link(int position) { return links_[size_t(at(position))]; }

    std::vector<int> ring_;
    int position_ = 0;
    std::vector<Link> links_;
    uint32_t generation_, number_ = 0;
    bool bf16_;
    std::vector<std::span<std::byte>> pieces_;
    std::vector<std::byte> outbox_, inbox_;
    RingRecord& record_;
    std::atomic<bool> shut_{false};
    // share_memory(): the ring of the ranks that sum for their hosts (empty: no shared memory),
    // this rank's place there (-1: none), and its own host's memory.
    std::vector<int> hosts_;
    int host_position_ = -1;
    bool has_all_links_ = true;  // to the partners in recursive doubling, also on that ring
    std::unique_ptr<SharedSum> host_;
};

}  // namespace convoy
