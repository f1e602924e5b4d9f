// connection.h — how the control plane (joining, heartbeats, aborts) connects and sends whole
// messages over a socket. Collectives use net/ring/link.h instead.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <string>

#include "net/control/addresses.h"
#include "net/control/limits.h"
#include "net/control/tls.h"
#include "net/control/wire.h"

namespace convoy {

// A socket. If there is a token, it is encrypted after secure().
struct Socket : tcp::socket {
    using tcp::socket::socket;
    Socket(tcp::socket&& plain) : tcp::socket(std::move(plain)) {}
    std::unique_ptr<Tls> tls;
};

using wire::Message;

// A system error in plain words. Every way in which a peer hangs up gives "connection closed".
std::string reason(const std::error_code& error);
// Sets the connected socket to send small messages at once, to detect dead hosts (keep-alive), and
// within a machine to send without pacing.
void set_options(tcp::socket& socket);

// No address of a host answered.
struct NotReached : Error {
    NotReached(const std::string& text, bool refused) : Error(text), all_refused(refused) {}
    bool all_refused;  // each address refused the connection: nobody listens there
};

// The addresses of a host name, asked anew each time. Throws Error if the name is not known, or DNS
// does not answer within name_patience.
asio::awaitable<std::vector<tcp::endpoint>> resolve(std::string host, uint16_t port);
// Performs the TLS handshake on a connected socket, as the end that dialled or the other end.
// Throws AccessError if the other end does not prove that it holds the token, and std::system_error
// if it hangs up. Does nothing without a token.
asio::awaitable<void> secure(Socket& socket, const TlsContext& tls, bool dialled);
// Tries each address of host:port once, for `patience`. Throws NotReached with the reasons
// ("connection refused"), Error if the name is not known, and AccessError as secure() does.
asio::awaitable<Socket> dial(std::string host, uint16_t port, const TlsContext& tls,
                             std::chrono::milliseconds patience);
// The same for a list of addresses. Afterwards the list holds the addresses that were not tried.
asio::awaitable<Socket> dial(std::vector<tcp::endpoint>& endpoints, const TlsContext& tls,
                             std::chrono::milliseconds patience);

// Reads one message of at most `limit` body bytes. Throws std::system_error from the socket, and
// Error (wire.h) for bytes that make no sense.
asio::awaitable<void> read_message(Socket& socket, uint64_t limit, Message& message);
asio::awaitable<void> write_message(Socket& socket, const std::string& bytes);

// A connection with a queue of outgoing messages, used by one io_context thread. Sending never
// blocks. A peer that leaves more than 1 MB unread loses its connection; if all peers together
// leave 64 MB unread, the limit is 16 KB. Messages in the queue keep the object alive.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
    explicit Connection(Socket socket);
    ~Connection();

    asio::awaitable<void> read(Message& message, uint64_t limit = wire::kControlLimit) {
        return read_message(socket_, limit, message);
    }
    asio::awaitable<void> read(Message& message, std::chrono::milliseconds patience) {
        return within(patience, socket_, read(message));
    }
    void send(std::string bytes);
    bool drained() const { return queue_.empty(); }
    bool is_open() const { return socket_.is_open(); }
    void close() noexcept;

    std::string remote() const { return address_text(peer_); }  // "10.0.0.7:51234"
    tcp::endpoint local_endpoint() const { return local_; }
    tcp::endpoint remote_endpoint() const { return peer_; }

    // Whether our bytes or the kernel's keep-alive probes have had no answer for `patience`: then
    // the machine at the other end, or the route to it, is down. The kernel of a stopped or busy
    // process still answers.
    bool machine_is_silent(std::chrono::milliseconds patience);

 private:
    static asio::awaitable<void> write_queue(std::shared_ptr<Connection> self);

    Socket socket_;
    tcp::endpoint local_, peer_;
    std::deque<std::string> queue_;
    size_t queued_bytes_ = 0;
    bool writing_ = false;
};

}  // namespace convoy
