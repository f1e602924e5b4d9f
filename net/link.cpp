#include "net/link.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace convoy {

Link::Link(int socket, std::string peer) : socket_(socket), peer_(std::move(peer)) {
    int off = 0;  // Asio leaves its sockets non-blocking
    if (ioctl(socket_, FIONBIO, &off) != 0) lost("setting up", errno);
}

Link::Link(Link&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)), peer_(std::move(other.peer_)) {}

Link& Link::operator=(Link&& other) noexcept {
    std::swap(socket_, other.socket_);
    std::swap(peer_, other.peer_);
    return *this;
}

Link::~Link() {
    if (socket_ >= 0) ::close(socket_);
}

void Link::shut() noexcept {
    if (socket_ >= 0) ::shutdown(socket_, SHUT_RDWR);  // an error means that it is dead already
}

void Link::lost(const char* doing, int error) const {
    const bool hung_up = error == 0 || error == ECONNRESET || error == EPIPE;
    throw LinkLost(
        cat(doing, " ", peer_, ": ", hung_up ? "connection closed" : std::strerror(error)));
}

size_t Link::send_some(std::span<const std::byte> bytes, bool more_follows) {
    const int flags = MSG_NOSIGNAL | MSG_DONTWAIT | (more_follows ? MSG_MORE : 0);
    const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), flags);
    if (n >= 0) return size_t(n);
    if (errno == EAGAIN || errno == EINTR) return 0;
    lost("sending to", errno);
}

size_t Link::receive_some(std::span<std::byte> bytes) {
    const ssize_t n = ::recv(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n > 0) return size_t(n);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    lost("receiving from", n == 0 ? 0 : errno);
}

void Link::send_all(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) lost("sending to", errno);
        bytes = bytes.subspan(size_t(n));
    }
}

void Link::receive_all(std::span<std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t n = ::recv(socket_, bytes.data(), bytes.size(), MSG_WAITALL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) lost("receiving from", n == 0 ? 0 : errno);
        bytes = bytes.subspan(size_t(n));
    }
}

size_t Link::receive_at_least(size_t least, std::span<std::byte> bytes) {
    size_t got = 0;
    while (got < least) {
        const ssize_t n = ::recv(socket_, bytes.data() + got, bytes.size() - got, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) lost("receiving from", n == 0 ? 0 : errno);
        got += size_t(n);
    }
    return got;
}

void wait_for(const Link& out, bool want_out, const Link& in, bool want_in) {
    pollfd sockets[2] = {{want_out ? out.socket() : -1, POLLOUT, 0},
                         {want_in ? in.socket() : -1, POLLIN, 0}};
    // Interrupted or failed: the next send or receive says what is the matter.
    ::poll(sockets, 2, -1);
}

}  // namespace convoy
