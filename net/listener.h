// listener.h — the one port of a process. The first message of a connection says what it is: a
// JOIN for the coordinator, an EDGE of the ring, or HEALTH.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "net/connection.h"
#include "src/base/log.h"

namespace convoy {

class Listener {
 public:
    Listener(asio::io_context& io, Log& log) : io_(io), log_(log) {}

    // Listens at `address`, `port` (0: the system picks). Throws std::system_error.
    void open(const asio::ip::address& address, uint16_t port);
    // Listens at every address of this machine, of both families where there are two.
    void open_everywhere(uint16_t port);
    bool is_open() const { return !acceptors_.empty(); }
    uint16_t port() const;  // 0 while not open
    void close() noexcept;

    // Called with each connection; where a callback is null, the connection is closed.
    std::function<void(tcp::socket, wire::Join)> on_join;
    std::function<void(tcp::socket, wire::Edge)> on_edge;
    std::function<wire::Health()> on_health;  // the answer to HEALTH

 private:
    void listen(tcp::acceptor acceptor, const tcp::endpoint& endpoint);
    asio::awaitable<void> accept(std::shared_ptr<tcp::acceptor> acceptor);
    asio::awaitable<void> read_first(tcp::socket socket);
    std::string health_message() const;
    void dispatch(tcp::socket& socket, const Message& first);
    void turn_away(const std::string& who, const std::string& why);

    asio::io_context& io_;
    Log& log_;
    std::vector<std::shared_ptr<tcp::acceptor>> acceptors_;
    int strangers_ = 0;
};

}  // namespace convoy
