#include "net/connection.h"

#include <netinet/tcp.h>

#include <charconv>

namespace convoy {

std::string address_text(const tcp::endpoint& endpoint) {
    asio::ip::address address = endpoint.address();
    if (address.is_v6() && address.to_v6().is_v4_mapped())
        address = asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
    return address.is_v6() ? cat("[", address.to_string(), "]:", endpoint.port())
                           : cat(address.to_string(), ":", endpoint.port());
}

std::pair<std::string, uint16_t> split_address(const std::string& text, const std::string& what) {
    std::string host = text, port;
    if (!text.empty() && text[0] == '[') {
        const size_t end = text.find(']');
        if (end == std::string::npos) fail(what, " '", text, "' lacks the closing ']'");
        host = text.substr(1, end - 1);
        port = text.substr(end + 1);
        if (!port.empty() && port[0] != ':') fail(what, " '", text, "' is not [address]:port");
    } else if (const size_t colon = text.find(':');
               colon != std::string::npos && text.find(':', colon + 1) == std::string::npos) {
        host = text.substr(0, colon);
        port = text.substr(colon);
    }
    if (port.empty()) return {host, 0};
    uint16_t number = 0;
    const char* end = port.data() + port.size();
    const auto [stop, error] = std::from_chars(port.data() + 1, end, number);
    if (error != std::errc() || stop != end || number == 0)
        fail(what, " '", text, "': the port must be a number from 1 to 65535");
    return {host, number};
}

std::string reason(const std::error_code& error) {
    if (error == asio::error::eof || error == asio::error::connection_reset ||
        error == asio::error::broken_pipe || error == asio::error::operation_aborted ||
        error == asio::error::connection_aborted || error == asio::error::bad_descriptor)
        return "connection closed";
    if (error == asio::error::connection_refused) return "connection refused";
    if (error == asio::error::timed_out) return "no answer";
    if (error == asio::error::host_unreachable) return "no route to this host";
    if (error == asio::error::network_unreachable) return "no route to this network";
    return error.message();
}

void set_options(tcp::socket& socket) {
    std::error_code ignored;  // none of these is needed for the right result
    socket.set_option(tcp::no_delay(true), ignored);
    socket.set_option(asio::socket_base::keep_alive(true), ignored);
    using Seconds = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPIDLE>;
    using Interval = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPINTVL>;
    using Probes = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPCNT>;
    socket.set_option(Seconds(20), ignored);
    socket.set_option(Interval(5), ignored);
    socket.set_option(Probes(4), ignored);
}

asio::awaitable<void> read_message(tcp::socket& socket, uint64_t limit, Message& message) {
    std::byte head[wire::kHeaderBytes];
    co_await asio::async_read(socket, asio::buffer(head), asio::use_awaitable);
    message.header = wire::decode(head, limit);
    message.body.resize(message.header.length);
    co_await asio::async_read(socket, asio::buffer(message.body), asio::use_awaitable);
}

asio::awaitable<void> write_message(tcp::socket& socket, const std::string& bytes) {
    co_await asio::async_write(socket, asio::buffer(bytes), asio::use_awaitable);
}

Connection::Connection(tcp::socket socket) : socket_(std::move(socket)) {
    std::error_code gone;  // a peer that has hung up already shows at the first read
    local_ = socket_.local_endpoint(gone);
    remote_endpoint_ = socket_.remote_endpoint(gone);
    remote_ = address_text(remote_endpoint_);
    set_options(socket_);
}

void Connection::send(std::string bytes) {
    if (!socket_.is_open()) return;
    queue_.push_back(std::move(bytes));
    if (writing_) return;
    writing_ = true;
    spawn(socket_.get_executor(), write_queue(shared_from_this()));
}

asio::awaitable<void> Connection::write_queue(std::shared_ptr<Connection> self) {
    try {
        for (; !self->queue_.empty(); self->queue_.pop_front())
            co_await write_message(self->socket_, self->queue_.front());
    } catch (const std::system_error&) {  // the reader reports why the socket is closed
        self->queue_.clear();
        self->close();
    }
    self->writing_ = false;
}

void Connection::close() noexcept {
    std::error_code ignored;  // closing is all we can do about an error here
    socket_.shutdown(tcp::socket::shutdown_both, ignored);
    socket_.close(ignored);
}

bool Connection::machine_is_silent(std::chrono::milliseconds patience) {
    tcp_info info{};
    socklen_t size = sizeof info;
    if (!socket_.is_open() ||
        getsockopt(socket_.native_handle(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0)
        return true;
    return info.tcpi_unacked > 0 && std::chrono::milliseconds(info.tcpi_last_ack_recv) > patience;
}

}  // namespace convoy
