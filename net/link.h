// link.h — one edge of the ring: a connected socket in blocking mode, used by one thread.
//
// Collectives use the plain socket calls: a chunk is one system call each way, with nothing
// allocated and nobody woken in between. shut() may come from any thread; it ends a blocked call.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "src/base/check.h"

namespace convoy {

// The link is dead, and whether its peer is as well the coordinator knows better.
struct LinkLost : Error {
    using Error::Error;
};

class Link {
 public:
    Link() = default;
    Link(int socket, std::string peer);  // owns the descriptor; `peer`: "rank 2 (10.0.0.7:29401)"
    Link(Link&& other) noexcept;
    Link& operator=(Link&& other) noexcept;
    ~Link();

    bool is_open() const { return socket_ >= 0; }
    int socket() const { return socket_; }
    const std::string& peer() const { return peer_; }
    void shut() noexcept;

    // All throw LinkLost. The `some` calls move what they can at once, 0 if nothing.
    size_t send_some(std::span<const std::byte> bytes, bool more_follows = false);
    size_t receive_some(std::span<std::byte> bytes);
    // Block until everything is moved.
    void send_all(std::span<const std::byte> bytes);
    void receive_all(std::span<std::byte> bytes);
    // Blocks for the first `least` bytes and takes what else is there; how many they were.
    size_t receive_at_least(size_t least, std::span<std::byte> bytes);

 private:
    [[noreturn]] void lost(const char* doing, int error) const;

    int socket_ = -1;
    std::string peer_;
};

// Blocks until `out` takes bytes (if want_out) or `in` has some (if want_in). No time limit: a
// slow neighbour is the coordinator's business, which shuts the links when one is dead.
void wait_for(const Link& out, bool want_out, const Link& in, bool want_in);

}  // namespace convoy
