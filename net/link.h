// link.h — one edge of the ring: connected sockets in blocking mode, used by one thread.
//
// An edge is one stream of bytes each way. Where one TCP connection does not fill a long path (its
// window is too small for the bytes under way), several share the stream, a stripe each in turn:
//
//   stream   | 0 | 1 | 2 | 3 | 4 | …      stripes of 256 KB
//   flow       0   1   2   0   1          so the slowest flow sets the pace of all
//
// Collectives use plain socket calls: one system call moves a chunk, and nothing is allocated. With
// a token the calls are OpenSSL's, on the same socket in non-blocking mode.
// shut() may come from any thread; it ends a blocked call.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "net/tls.h"
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
    // Before the first byte, on both ends in the same order: flow `number`, which is new or the
    // last one again.
    void set_flow(size_t number, int socket, std::unique_ptr<Tls> tls);
    size_t flows() const { return flows_.size(); }
    Link(Link&& other) noexcept { *this = std::move(other); }
    Link& operator=(Link&& other) noexcept;
    ~Link();

    bool is_open() const { return !flows_.empty(); }
    bool has_ended() const;  // the other end has closed it
    // Where the next byte goes, or comes from.
    int socket_out() const { return flows_[out_.flow].socket; }
    int socket_in() const { return flows_[in_.flow].socket; }
    const std::string& peer() const { return peer_; }
    bool is_plain() const { return !flows_.front().tls; }  // nobody checks what arrives
    void shut() noexcept;
    void set_limit(std::function<size_t(size_t)> limit) { limit_ = std::move(limit); }

    // All throw LinkLost. The `some` calls do not block: they return the bytes moved, maybe 0.
    size_t send_some(std::span<const std::byte> bytes, bool more_follows = false);
    size_t receive_some(std::span<std::byte> bytes);
    void send_all(std::span<const std::byte> bytes);  // blocks until everything is sent
    // Blocks for the first `least` bytes and takes what else is there; returns how many came.
    size_t receive_at_least(size_t least, std::span<std::byte> bytes);
    void receive_all(std::span<std::byte> bytes) { receive_at_least(bytes.size(), bytes); }

 private:
    static constexpr size_t kStripe = 256 << 10;
    struct Flow {
        int socket = -1;
        std::unique_ptr<Tls> tls = {};
    };
    struct Place {  // in the stream
        size_t flow = 0, left = kStripe;
    };
    size_t most(const Place& at, size_t bytes) const {
        return flows_.size() > 1 ? std::min(bytes, at.left) : bytes;
    }
    size_t limited(size_t bytes) const { return limit_ ? limit_(bytes) : bytes; }
    size_t moved(ssize_t result, const char* doing, Place& at) const;
    size_t send(std::span<const std::byte> bytes, int flags);
    size_t receive(std::span<std::byte> bytes, int flags);

    std::vector<Flow> flows_;
    Place out_, in_;
    std::string peer_;
    std::function<size_t(size_t)> limit_;
};

// Blocks until `out` takes bytes (if want_out) or `in` has some (if want_in). No time limit: the
// coordinator watches the ranks, and the links are shut when one is lost.
void wait_for(const Link& out, bool want_out, const Link& in, bool want_in);

}  // namespace convoy
