// shared_sum.h — sums of the ranks of one host, in memory that they share.
// Rank i of m adds up slice i of each chunk, in the order of the ranks:
//
//   rank 0                      rank 1                  rank 2              in turn, for chunks of
//   write x0 of slices 1 2      x1 of slices 0 2        x2 of slices 0 1    256 KB. Of several
//   hosts add   Σ of slice 0          Σ of slice 1            Σ of slice 2        the first rank
//   alone take  Σ of slices 1 2       Σ of slices 0 2         Σ of slices 0 1     takes; then its
//   ring sums
//
//   every rank, in turn:   write c+2 ─ add c+1 ─ take c ─ write c+3 ─ add c+2 ─ take c+1 ─ …
//
// So no rank waits for work that has just begun. A rank has four slots, for four chunks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "net/control/wire.h"

namespace convoy {

// Where another process finds the memory, a memfd: /proc/PID/fd/FD.
struct MemoryTicket {
    int32_t process = 0, descriptor = -1;
    uint64_t secret = 0;  // the first 8 bytes: the numbers may name other memory elsewhere
};

using SharedMemory = std::shared_ptr<std::byte>;
struct SharingRank {
    int rank = 0;  // in the ring
    std::string name;
};

class SharedSum {
 public:
    static size_t bytes_for(size_t ranks);
    // `memory`: bytes_for(ranks.size()) bytes, zero except the first 8, mapped by every rank of
    // `ranks`; `index` is this rank's index. `stop` ends each wait by LinkLost. `moved` counts
    // bytes. Both must outlive this object.
    SharedSum(SharedMemory memory, size_t index, std::vector<SharingRank> ranks,
              const std::atomic<bool>& stop, std::atomic<uint64_t>& moved);

    // This rank is in collective `number` of the ring from now on, with or without this memory. A
    // rank that waits for this rank but is in another collective throws PeerMistake.
    void enter(uint32_t number, wire::Type type, size_t bytes);
    // data = Σ over the ranks; everyone = false: on rank 0 alone, undefined on the others.
    void sum(uint32_t number, std::span<float> data, bool everyone);
    // After sum(…, false): data = the data of rank 0.
    void spread(std::span<float> data);
    // Rank 0 has received this many bytes from other hosts; the waiting ranks count them too.
    void progress(size_t bytes);

    std::function<size_t(size_t)> limit;  // JoinOptions::limit
    // Called every 50 ms of a wait; throws if the ring has lost a link.
    std::function<void()> look;

 private:
    struct alignas(64) Board;  // what one rank tells the others
    using Count = std::atomic<uint32_t> Board::*;
    Board& board(size_t rank) const;
    std::span<float> slot(size_t rank, uint32_t chunk, size_t size) const;
    std::span<float> slice(std::span<float> chunk, size_t rank) const;
    void write(uint32_t chunk, std::span<float> data);
    void add_up(uint32_t chunk, std::span<float> data);
    void take(uint32_t chunk, std::span<float> data, bool wanted);
    void publish(Count count, uint32_t chunks);
    void wait_for(size_t rank, Count count, uint32_t chunks);
    void wait_for_others(Count count, uint32_t chunks);
    bool is_elsewhere(size_t rank) const;
    [[noreturn]] void fail_at(size_t rank) const;

    const SharedMemory memory_;
    const size_t index_;
    const std::vector<SharingRank> ranks_;
    const std::atomic<bool>& stop_;
    std::atomic<uint64_t>& moved_;
    uint64_t seen_progress_ = 0;
    size_t data_bytes_ = 0;  // of the collective that this rank is in
    uint32_t next_ = 0;      // chunks of all sums so far, as the counters count them; wraps
};

// Zero memory except for the secret. The ticket's descriptor stays open. Throws std::system_error.
SharedMemory create_memory(size_t bytes, MemoryTicket& ticket);
SharedMemory open_memory(size_t bytes, const MemoryTicket& ticket);

}  // namespace convoy
