// connection.h — whole messages over one socket, for the control plane (joining, heartbeats,
// aborts). Collectives do not pass here: see link.h.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <string>

#include "net/asio.h"
#include "net/wire.h"

namespace convoy {

struct Message {
    wire::Header header;
    std::string body;
};

// "10.0.0.7:29401", "[fd00::2]:29401"; an IPv4 address inside IPv6 is printed as IPv4.
std::string address_text(const tcp::endpoint& endpoint);
// Cuts "host:port", "[v6]:port", "host" or a bare IPv6 address; port 0 if there is none. Throws
// Error naming `what` when the port is no number.
std::pair<std::string, uint16_t> split_address(const std::string& text, const std::string& what);
// A system error in the words of this program: every kind of hang-up is "connection closed".
std::string reason(const std::error_code& error);
// Small messages at once, dead hosts found, addresses reusable.
void set_options(tcp::socket& socket);

// Reads one message of at most `limit` body bytes. Throws std::system_error from the socket, and
// Error (wire.h) for bytes that make no sense.
asio::awaitable<void> read_message(tcp::socket& socket, uint64_t limit, Message& message);
// For one message that must not queue (EDGE).
asio::awaitable<void> write_message(tcp::socket& socket, const std::string& bytes);

// A connection with a queue of messages to write. Everything runs on one io_context thread;
// writing never blocks the caller. Kept alive by its pending writes.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
    explicit Connection(tcp::socket socket);

    asio::awaitable<void> read(Message& message) {
        return read_message(socket_, wire::kControlLimit, message);
    }
    asio::awaitable<void> read(Message& message, std::chrono::milliseconds patience) {
        return within(patience, socket_, read(message));
    }
    void send(std::string bytes);
    bool drained() const { return queue_.empty(); }
    bool is_open() const { return socket_.is_open(); }
    void close() noexcept;

    const std::string& remote() const { return remote_; }  // "10.0.0.7:51234"
    tcp::endpoint local_endpoint() const { return local_; }
    tcp::endpoint remote_endpoint() const { return remote_endpoint_; }

    // Whether the machine at the other end has left bytes of ours unacknowledged for `patience`:
    // then the machine or the way to it is gone. A stopped or busy process is not: its kernel
    // still acknowledges.
    bool machine_is_silent(std::chrono::milliseconds patience);

 private:
    static asio::awaitable<void> write_queue(std::shared_ptr<Connection> self);

    tcp::socket socket_;
    tcp::endpoint local_, remote_endpoint_;
    std::string remote_;
    std::deque<std::string> queue_;
    bool writing_ = false;
};

}  // namespace convoy
