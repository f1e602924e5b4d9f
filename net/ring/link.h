// link.h — one link of the ring: a connected socket in blocking mode, used by one thread.
//
// Collectives use plain socket calls: one system call moves a chunk, and nothing is allocated. With
// a token the calls are OpenSSL's, on the same socket in non-blocking mode.
// shut() may come from any thread; it ends a blocked call.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "net/control/tls.h"
#include "src/base/check.h"

namespace convoy {

// The link is dead. Only the coordinator knows whether its peer is dead too.
struct LinkLost : Error {
    using Error::Error;
};

class Link {
 public:
    Link() = default;
    // Owns the descriptor, on which `tls` may work. `peer`: "rank 2 (10.0.0.7:29401)".
    Link(int socket, std::string peer, std::unique_ptr<Tls> tls = nullptr);
    Link(Link&& other) noexcept { *this = std::move(other); }
    Link& operator=(Link&& other) noexcept;
    ~Link();

    bool is_open() const { return socket_ >= 0; }
    bool has_ended() const;  // the other end has closed it
    int socket() const { return socket_; }
    const std::string& peer() const { return peer_; }
    void shut() noexcept;
    void set_limit(std::function<size_t(size_t)> limit) { limit_ = std::move(limit); }

    // All throw LinkLost. The `some` calls do not block: they return the bytes moved, maybe 0.
    size_t send_some(std::span<const std::byte> bytes, bool more_follows = false);
    size_t receive_some(std::span<std::byte> bytes);
    void send_all(std::span<const std::byte> bytes);  // blocks until everything is sent
    // Blocks until `least` bytes came, and takes all that are there. Returns how many came.
    size_t receive_at_least(size_t least, std::span<std::byte> bytes);
    void receive_all(std::span<std::byte> bytes) { receive_at_least(bytes.size(), bytes); }

 private:
    size_t limited(size_t bytes) const { return limit_ ? limit_(bytes) : bytes; }
    size_t moved(ssize_t result, const char* doing) const;
    size_t send(std::span<const std::byte> bytes, int flags);
    size_t receive(std::span<std::byte> bytes, int flags);

    int socket_ = -1;
    std::string peer_;
    std::unique_ptr<Tls> tls_;
    std::function<size_t(size_t)> limit_;
};

// Blocks until `out` takes bytes (if want_out) or `in` has some (if want_in). No time limit: the
// coordinator watches the ranks, and the links are shut when one is lost.
void wait_for(const Link& out, bool want_out, const Link& in, bool want_in);

}  // namespace convoy
