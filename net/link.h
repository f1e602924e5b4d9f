// link.h — one edge of the ring: a connected socket in blocking mode, used by one thread.
//
// Collectives use plain socket calls: one system call moves a chunk, and nothing is allocated.
// shut() may come from any thread; it ends a blocked call.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "src/base/check.h"

namespace convoy {

// The link is dead. Only the coordinator knows whether its peer is dead too.
struct LinkLost : Error {
    using Error::Error;
};

class Link {
 public:
    Link() = default;
    Link(int socket, std::string peer);  // owns the descriptor; `peer`: "rank 2 (10.0.0.7:29401)"
    Link(Link&& other) noexcept { *this = std::move(other); }
    Link& operator=(Link&& other) noexcept;
    ~Link();

    bool is_open() const { return socket_ >= 0; }
    int socket() const { return socket_; }
    const std::string& peer() const { return peer_; }
    void shut() noexcept;

    // All throw LinkLost. The `some` calls do not block: they return the bytes moved, maybe 0.
    size_t send_some(std::span<const std::byte> bytes, bool more_follows = false);
    size_t receive_some(std::span<std::byte> bytes);
    void send_all(std::span<const std::byte> bytes);  // blocks until everything is sent
    // Blocks for the first `least` bytes and takes what else is there; returns how many came.
    size_t receive_at_least(size_t least, std::span<std::byte> bytes);
    void receive_all(std::span<std::byte> bytes) { receive_at_least(bytes.size(), bytes); }

 private:
    size_t moved(ssize_t result, const char* doing) const;

    int socket_ = -1;
    std::string peer_;
};

// Blocks until `out` takes bytes (if want_out) or `in` has some (if want_in). No time limit: the
// coordinator watches the ranks, and the links are shut when one is lost.
void wait_for(const Link& out, bool want_out, const Link& in, bool want_in);

}  // namespace convoy
