#include "net/ring/shared_sum.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <system_error>
#include <utility>

#include "net/control/ids.h"
#include "net/control/limits.h"
#include "net/ring/reduce.h"
#include "net/ring/ring.h"

namespace convoy {

namespace {

constexpr char kName[] = "convoy";
constexpr size_t kChunk = 64 << 10;  // floats
constexpr uint32_t kSlots = 4;       // of a rank
constexpr size_t kFront = 4096;      // bytes in front of the boards: the secret

// A futex, because std::atomic::wait() does not work between processes. May return without a cause.
void futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* patience) {
    syscall(SYS_futex, &word, operation, value, patience, nullptr, 0);
}

// Takes ownership of the descriptor.
SharedMemory map(int descriptor, size_t bytes) {
    void* const memory =
        descriptor < 0 ? MAP_FAILED
                       : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    const std::error_code error(errno, std::generic_category());
    if (memory == MAP_FAILED && descriptor >= 0) close(descriptor);
    if (memory == MAP_FAILED) throw std::system_error(error);
    return {static_cast<std::byte*>(memory), [descriptor, bytes](std::byte* all) {
                munmap(all, bytes);
                close(descriptor);
            }};
}

}  // namespace

SharedMemory create_memory(size_t bytes, MemoryTicket& ticket) {
    const int descriptor = memfd_create(kName, MFD_CLOEXEC);
    // Reserves all pages now. If a page were missing later, SIGBUS would end the process.
    if (const int error = descriptor < 0 ? 0 : posix_fallocate(descriptor, 0, off_t(bytes))) {
        close(descriptor);
        throw std::system_error(error, std::generic_category());
    }
    SharedMemory memory = map(descriptor, bytes);
    ticket = {int32_t(getpid()), descriptor, fresh_id()};
    std::memcpy(memory.get(), &ticket.secret, sizeof ticket.secret);
    return memory;
}

SharedMemory open_memory(size_t bytes, const MemoryTicket& ticket) {
    const std::string path = cat("/proc/", ticket.process, "/fd/", ticket.descriptor);
    // Checked before open(): in another container these numbers may name any file.
    char target[64] = "";
    const ssize_t length = readlink(path.c_str(), target, sizeof target - 1);
    if (length >= 0 && !std::string_view(target).starts_with(cat("/memfd:", kName, " ")))
        throw std::system_error(ESRCH, std::generic_category());
    const int descriptor = length < 0 ? -1 : open(path.c_str(), O_RDWR | O_CLOEXEC);
    struct stat status {};
    if (descriptor >= 0 && (fstat(descriptor, &status) != 0 || size_t(status.st_size) < bytes)) {
        close(descriptor);
        throw std::system_error(ESRCH, std::generic_category());
    }
    SharedMemory memory = map(descriptor, bytes);
    if (std::memcmp(memory.get(), &ticket.secret, sizeof ticket.secret) != 0)
        throw std::system_error(ESRCH, std::generic_category());
    return memory;
}

struct alignas(64) SharedSum::Board {
    std::atomic<uint32_t> written, added, taken;  // chunks
    std::atomic<uint32_t> sleepers;               // who wait for one of these
    std::atomic<uint64_t> what, bytes;            // number << 8 | type of the collective it is in
    std::atomic<uint64_t> progress;
};

size_t SharedSum::bytes_for(size_t ranks) {
    return kFront + ranks * (sizeof(Board) + kSlots * kChunk * sizeof(float));
}

SharedSum::SharedSum(SharedMemory memory, size_t index, std::vector<SharingRank> ranks,
                     const std::atomic<bool>& stop, std::atomic<uint64_t>& moved)
    : memory_(std::move(memory)),
      index_(index),
      ranks_(std::move(ranks)),
      stop_(stop),
      moved_(moved) {}

SharedSum::Board& SharedSum::board(size_t rank) const {
    return reinterpret_cast<Board*>(memory_.get() + kFront)[rank];
}

std::span<float> SharedSum::slot(size_t rank, uint32_t chunk, size_t size) const {
    auto* const slots = reinterpret_cast<float*>(&board(ranks_.size()));
    return {slots + (rank * kSlots + chunk % kSlots) * kChunk, size};
}

// The slice of a chunk that `rank` adds up; whole cache lines.
std::span<float> SharedSum::slice(std::span<float> chunk, size_t rank) const {
    const auto border = [&](size_t r) {
        return r == ranks_.size() ? chunk.size() : chunk.size() * r / ranks_.size() / 16 * 16;
    };
    return chunk.subspan(border(rank), border(rank + 1) - border(rank));
}

void SharedSum::enter(uint32_t number, wire::Type type, size_t bytes) {
    board(index_).bytes = data_bytes_ = bytes;
    board(index_).what = uint64_t(number) << 8 | uint64_t(type);
}

void SharedSum::progress(size_t bytes) { board(0).progress += bytes; }

static uint32_t chunks_of(std::span<float> data) {
    return uint32_t(std::max<size_t>(1, (data.size() + kChunk - 1) / kChunk));
}

static std::span<float> chunk_of(std::span<float> data, uint32_t chunk) {
    const size_t begin = std::min(data.size(), chunk * kChunk);
    return data.subspan(begin, std::min(kChunk, data.size() - begin));
}

static void copy(std::span<float> into, std::span<const float> from) {
    if (!into.empty()) std::memcpy(into.data(), from.data(), into.size_bytes());
}

void SharedSum::sum(uint32_t number, std::span<float> data, bool everyone) {
    enter(number, wire::Type::sum, data.size_bytes());
    const uint32_t chunks = chunks_of(data), first = next_;
    next_ += chunks;
    for (uint32_t c = 0; c < chunks + 2; ++c) {
        if (c < chunks) write(first + c, chunk_of(data, c));
        if (c >= 1 && c <= chunks) add_up(first + c - 1, chunk_of(data, c - 1));
        if (c >= 2) take(first + c - 2, chunk_of(data, c - 2), everyone || index_ == 0);
    }
}

void SharedSum::write(uint32_t chunk, std::span<float> data) {
    wait_for_others(&Board::taken, chunk + 1 - kSlots);
    const std::span<float> into = slot(index_, chunk, data.size());
    for (size_t r = 0; r < ranks_.size(); ++r)
        if (r != index_) copy(slice(into, r), slice(data, r));
    publish(&Board::written, chunk + 1);
}

void SharedSum::add_up(uint32_t chunk, std::span<float> data) {
    wait_for_others(&Board::written, chunk + 1);
    const std::span<float> mine = slice(data, index_);
    const std::span<float> sum = slice(slot(index_, chunk, data.size()), index_);
    for (size_t r = 0; r < ranks_.size(); ++r) {
        if (board(r).what != board(index_).what || board(r).bytes != data_bytes_) fail_at(r);
        const auto from = r == index_ ? mine : slice(slot(r, chunk, data.size()), index_);
        r == 0 ? copy(sum, from) : add(sum.data(), from.data(), sum.size());
    }
    copy(mine, sum);
    publish(&Board::added, chunk + 1);
    moved_ += data.size_bytes();
}

void SharedSum::take(uint32_t chunk, std::span<float> data, bool wanted) {
    for (size_t r = 0; wanted && r < ranks_.size(); ++r) {
        if (r == index_) continue;
        wait_for(r, &Board::added, chunk + 1);
        copy(slice(data, r), slice(slot(r, chunk, data.size()), r));
    }
    publish(&Board::taken, chunk + 1);
}

void SharedSum::spread(std::span<float> data) {
    const uint32_t chunks = chunks_of(data), first = next_;
    next_ += chunks;
    for (uint32_t c = 0; c < chunks; ++c) {
        const std::span<float> part = chunk_of(data, c), shared = slot(0, first + c, part.size());
        if (index_ == 0) {
            wait_for_others(&Board::taken, first + c + 1 - kSlots);
            copy(shared, part);
            publish(&Board::written, first + c + 1);
        } else {
            wait_for(0, &Board::written, first + c + 1);
            copy(part, shared);
        }
        publish(&Board::taken, first + c + 1);
        moved_ += part.size_bytes();
    }
}

void SharedSum::publish(Count count, uint32_t chunks) {
    if (limit) limit(0);
    Board& mine = board(index_);
    mine.*count = chunks;
    // A waiter registers before it reads the counter, so it cannot miss the new value.
    if (mine.sleepers > 0) futex(mine.*count, FUTEX_WAKE, INT_MAX, nullptr);
}

// Waits until `rank` has done this many chunks. It may be ahead and counters wrap, so differences
// are compared. Sleeps at once: with more ranks than cores, spinning or yielding delays others.
void SharedSum::wait_for(size_t rank, Count count, uint32_t chunks) {
    Board& other = board(rank);
    const auto done = [&](uint32_t value) { return int32_t(value - chunks) >= 0; };
    if (done(other.*count)) return;
    ++other.sleepers;
    for (uint32_t value; !stop_ && !done(value = other.*count);) {
        const timespec patience{0, std::chrono::nanoseconds(kLook).count()};
        futex(other.*count, FUTEX_WAIT, value, &patience);
        const uint64_t progress = board(0).progress;
        moved_ += progress - std::exchange(seen_progress_, progress);
        // A rank publishes its counter before it enters the next collective.
        if (is_elsewhere(rank) && !done(other.*count)) fail_at(rank);
        if (look) look();
    }
    --other.sleepers;
    if (stop_) throw LinkLost(cat("waiting in shared memory for ", ranks_[rank].name));
}

void SharedSum::wait_for_others(Count count, uint32_t chunks) {
    for (size_t r = 0; r < ranks_.size(); ++r)
        if (r != index_) wait_for(r, count, chunks);
}

// Whether `rank` is in another collective than this rank, or in a later one.
bool SharedSum::is_elsewhere(size_t rank) const {
    const uint64_t mine = board(index_).what, other = board(rank).what;
    const auto ahead = int32_t(uint32_t(other >> 8) - uint32_t(mine >> 8));
    return ahead > 0 || (ahead == 0 && (other != mine || board(rank).bytes != data_bytes_));
}

void SharedSum::fail_at(size_t rank) const {
    const auto describe = [](const Board& b) {
        return cat("collective ", b.what >> 8, ", a ", wire::name(wire::Type(b.what & 0xff)),
                   " of ", b.bytes.load(), " bytes");
    };
    throw PeerMistake(ranks_[rank].rank,
                      cat(ranks_[rank].name, " is in ", describe(board(rank)), "; this rank is in ",
                          describe(board(index_)), ": do they train the same model?"));
}

}  // namespace convoy
