// listener.h — the one port of a process. The first message of a connection says what it is: a
// JOIN for the coordinator, a LINK of the ring, HEALTH, or the question for an OFFER.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "net/control/connection.h"
#include "net/control/join_options.h"
#include "net/control/log_queue.h"

namespace convoy {

class Listener {
 public:
    Listener(asio::io_context& io, LogQueue& log, const Access& access)
        : io_(io), log_(log), tls_(make_tls(access.token)), open_(access.open) {}

    const TlsContext& tls() const { return tls_; }
    // Listens at `address` (unspecified: every address of this machine, IPv4 and IPv6) and `port`
    // (0: the system picks). Throws std::system_error. Throws AccessError if other machines reach
    // the address, and there is neither a token nor --open.
    void open(const asio::ip::address& address, uint16_t port);
    // Logs that anybody may join. Called in the process that other ranks join.
    void tell_if_exposed();
    bool is_open() const { return !acceptors_.empty(); }
    uint16_t port() const;       // 0 while not open
    bool is_everywhere() const;  // at every address of this machine
    void close() noexcept;

    // Logs that a stranger was refused, unless the log has many such lines.
    void log_refusal(const std::string& text);

    // Called with each connection. If a callback is null, the connection is closed.
    std::function<void(Socket, wire::Join)> on_join;
    std::function<void(Socket, wire::Link)> on_link;
    std::function<wire::Health()> on_health;  // the answer to HEALTH
    std::function<std::string()> on_offer;    // OFFER or REFUSE, encoded
    // Whether no connection is urgent. Then only a few are accepted per second, so a flood of
    // connections takes hardly any time from training. Null: every connection is urgent.
    std::function<bool()> is_calm;
    // The address of the coordinator, for the answer to a JOIN that comes to another rank.
    std::function<std::string()> coordinator_at;

 private:
    asio::awaitable<void> accept(std::shared_ptr<tcp::acceptor> acceptor);
    asio::awaitable<void> slow_down();
    asio::awaitable<void> read_first(Socket socket);
    void let_in(Socket& socket);

    asio::io_context& io_;
    LogQueue& log_;
    const TlsContext tls_;
    const bool open_;
    bool exposed_ = false;  // other machines reach the port, and there is no token
    std::vector<std::shared_ptr<tcp::acceptor>> acceptors_;
    Clock::time_point paid_until_ = {};  // at kApart for each connection that was accepted
    struct Guest {
        asio::ip::address from;
        Socket* socket;
    };
    std::vector<Guest> guests_;  // a first message or answer is pending; oldest first
    Refusals refusals_;
};

}  // namespace convoy
