#include "net/control/connection.h"

#include <netinet/tcp.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "src/base/clock.h"

namespace convoy {

static std::atomic<size_t> queued_in_all{0};  // bytes

std::string reason(const std::error_code& error) {
    using namespace asio::error;
    if (error == eof || error == connection_reset || error == broken_pipe ||
        error == operation_aborted || error == connection_aborted || error == bad_descriptor)
        return "connection closed";
    if (error == connection_refused) return "connection refused";
    if (error == timed_out) return "no answer";
    if (error == host_unreachable) return "no route to this host";
    if (error == network_unreachable) return "no route to this network";
    return error.message();
}

void set_options(tcp::socket& socket) {
    std::error_code ignored;  // none of these is needed for the right result
    socket.set_option(tcp::no_delay(true), ignored);
    socket.set_option(asio::socket_base::keep_alive(true), ignored);
    using asio::detail::socket_option::integer;
    socket.set_option(integer<IPPROTO_TCP, TCP_KEEPIDLE>(20), ignored);  // seconds
    socket.set_option(integer<IPPROTO_TCP, TCP_KEEPINTVL>(5), ignored);
    socket.set_option(integer<IPPROTO_TCP, TCP_KEEPCNT>(4), ignored);
    // Within a machine there is no congestion, but BBR paces there too, by timers, which halves the
    // speed. Reno does not pace, and every user may choose it.
    const auto own = socket.local_endpoint(ignored), other = socket.remote_endpoint(ignored);
    constexpr char kReno[] = "reno";
    if (own.address() == other.address())
        (void)setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_CONGESTION, kReno, sizeof kReno);
}

asio::awaitable<std::vector<tcp::endpoint>> resolve(std::string host, uint16_t port) {
    std::error_code error;
    const auto address = asio::ip::make_address(host, error);
    if (!error) co_return std::vector{tcp::endpoint(address, port)};
    // libc's look-up cannot be stopped, and may take a minute. So its thread is not waited for, and
    // shares the result. async_resolve() would keep the process until the look-up ends.
    struct LookUp {
        std::vector<tcp::endpoint> found;
        std::error_code error;
        std::atomic<bool> is_done{false};
    };
    const auto look_up = std::make_shared<LookUp>();
    std::thread([look_up, host, port] {
        asio::io_context io;
        const auto found = tcp::resolver(io).resolve(host, cat(port), look_up->error);
        look_up->found.assign(found.begin(), found.end());
        look_up->is_done = true;
    }).detach();
    for (const auto end = Clock::now() + name_patience; !look_up->is_done;) {
        if (Clock::now() > end)
            fail("the name '", host, "' is not known: no answer of DNS in ",
                 name_patience.count() / 1000, " s");
        co_await sleep_for(std::chrono::milliseconds(2));
    }
    if (look_up->error) fail("the name '", host, "' is not known (", look_up->error.message(), ")");
    co_return look_up->found;
}

namespace {

constexpr char kRefused[] =
    "refused: the token differs or the other side has none (--token-file, CONVOY_TOKEN)";

// Calls OpenSSL again whenever the socket is ready, until it has moved `bytes` bytes.
template <class Call>
asio::awaitable<void> repeat(Socket& socket, size_t bytes, Call call) {
    for (size_t done = 0; done < bytes;) {
        if (!socket.is_open()) throw std::system_error(asio::error::bad_descriptor);
        const ssize_t moved = call(done);
        if (moved == 0) throw std::system_error(make_error_code(asio::error::eof));
        if (moved > 0)
            done += size_t(moved);
        else if (errno == EAGAIN)
            co_await socket.async_wait(
                socket.tls->wants_write() ? tcp::socket::wait_write : tcp::socket::wait_read,
                asio::use_awaitable);
        else
            throw std::system_error(errno, asio::error::get_system_category());
    }
}

// Returns less only with an error.
asio::awaitable<size_t> read_all(Socket& socket, std::span<std::byte> bytes,
                                 std::error_code& error) {
    if (!socket.tls)
        co_return co_await asio::async_read(socket, asio::buffer(bytes.data(), bytes.size()),
                                            asio::redirect_error(asio::use_awaitable, error));
    co_await repeat(socket, bytes.size(),
                    [&](size_t done) { return socket.tls->read(bytes.subspan(done)); });
    co_return bytes.size();
}

}  // namespace

asio::awaitable<void> secure(Socket& socket, const TlsContext& tls, bool dialled) {
    if (!tls) co_return;
    socket.native_non_blocking(true);
    socket.tls = std::make_unique<Tls>(tls, socket.native_handle(), dialled);
    try {
        co_await repeat(socket, 1, [&](size_t) { return socket.tls->handshake(); });
    } catch (const std::system_error& e) {
        if (e.code().value() != EPROTO) throw;
        throw AccessError(dialled ? kRefused : "its token differs, or it has none");
    }
}

asio::awaitable<Socket> dial(std::string host, uint16_t port, const TlsContext& tls,
                             std::chrono::milliseconds patience) {
    std::vector<tcp::endpoint> endpoints = co_await resolve(host, port);
    co_return co_await dial(endpoints, tls, patience);
}

asio::awaitable<Socket> dial(std::vector<tcp::endpoint>& endpoints, const TlsContext& tls,
                             std::chrono::milliseconds patience) {
    std::string why;
    bool all_refused = !endpoints.empty();
    for (const bool is_one = endpoints.size() == 1; !endpoints.empty();) {
        const tcp::endpoint endpoint = endpoints.front();
        endpoints.erase(endpoints.begin());
        Socket socket(co_await asio::this_coro::executor);
        why += why.empty() ? "" : ", ";
        bool refused = false;
        try {
            co_await within(patience, socket, socket.async_connect(endpoint, asio::use_awaitable));
            co_await within(patience, socket, secure(socket, tls, true));
            co_return socket;
        } catch (const std::system_error& e) {
            why += reason(e.code());
            refused = e.code() == asio::error::connection_refused;
        } catch (const TimedOut&) {
            why += cat("no answer in ", patience.count() / 1000, " s");
        }
        if (!is_one) why += cat(" (", address_text(endpoint), ")");
        all_refused = all_refused && refused;
    }
    throw NotReached(why, all_refused);
}

asio::awaitable<void> read_message(Socket& socket, uint64_t limit, Message& message) {
    std::byte head[wire::kHeaderBytes];
    std::error_code error;
    const size_t got = co_await read_all(socket, head, error);
    // If only the other end has a token, it answers with a TLS alert.
    if (error && got > 0 && char(head[0]) == kTlsAlert[0]) throw AccessError(kRefused);
    if (error) throw std::system_error(error);
    message.header = wire::decode(head, limit);
    message.body.clear();
    // Allocates memory as bytes arrive, not as the header claims.
    for (uint64_t left = message.header.length; left > 0;) {
        const size_t n = std::min<uint64_t>(left, 64 << 10), have = message.body.size();
        message.body.resize(have + n);
        const auto part = std::as_writable_bytes(std::span(message.body)).subspan(have);
        co_await read_all(socket, part, error);
        if (error) throw std::system_error(error);
        left -= n;
    }
}

asio::awaitable<void> write_message(Socket& socket, const std::string& bytes) {
    if (!socket.tls) {
        co_await asio::async_write(socket, asio::buffer(bytes), asio::use_awaitable);
        co_return;
    }
    const auto all = std::as_bytes(std::span(bytes));
    co_await repeat(socket, all.size(),
                    [&](size_t done) { return socket.tls->write(all.subspan(done)); });
}

Connection::Connection(Socket socket) : socket_(std::move(socket)) {
    std::error_code gone;  // a peer that has hung up shows at the first read
    local_ = socket_.local_endpoint(gone);
    peer_ = socket_.remote_endpoint(gone);
    set_options(socket_);
}

Connection::~Connection() { queued_in_all -= queued_bytes_; }

void Connection::send(std::string bytes) {
    if (!socket_.is_open()) return;
    const size_t most = queued_in_all > kMostInAll ? kFairShare : kMostQueued;
    if (!queue_.empty() && queued_bytes_ + bytes.size() > most) return close();
    queued_bytes_ += bytes.size();
    queued_in_all += bytes.size();
    queue_.push_back(std::move(bytes));
    if (writing_) return;
    writing_ = true;
    spawn(socket_.get_executor(), write_queue(shared_from_this()));
}

asio::awaitable<void> Connection::write_queue(std::shared_ptr<Connection> self) {
    try {
        for (; !self->queue_.empty(); self->queue_.pop_front()) {
            co_await write_message(self->socket_, self->queue_.front());
            self->queued_bytes_ -= self->queue_.front().size();
            queued_in_all -= self->queue_.front().size();
        }
    } catch (const std::system_error&) {  // the reader reports why the socket is closed
        self->queue_.clear();
        queued_in_all -= std::exchange(self->queued_bytes_, 0);
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
    // If this machine has lost the route, the kernel sends no bytes, only probes.
    return (info.tcpi_unacked > 0 || info.tcpi_probes > 1) &&
           std::chrono::milliseconds(info.tcpi_last_ack_recv) > patience;
}

}  // namespace convoy
