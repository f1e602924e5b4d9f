#include "net/link.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace convoy {

Link::Link(int socket, std::string peer) : socket_(socket), peer_(std::move(peer)) {
    int off = 0;  // Asio leaves its sockets non-blocking
    if (ioctl(socket_, FIONBIO, &off) != 0) moved(-1, "setting up");
}

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

// The number of bytes that a socket call moved; 0 where it would have to wait.
size_t Link::moved(ssize_t result, const char* doing) const {
    if (result > 0) return size_t(result);
    if (result < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    const bool closed = result == 0 || errno == ECONNRESET || errno == EPIPE;
    throw LinkLost(
        cat(doing, " ", peer_, ": ", closed ? "connection closed" : std::strerror(errno)));
}

size_t Link::send_some(std::span<const std::byte> bytes, bool more_follows) {
    const int flags = MSG_NOSIGNAL | MSG_DONTWAIT | (more_follows ? MSG_MORE : 0);
    return moved(::send(socket_, bytes.data(), bytes.size(), flags), "sending to");
}

size_t Link::receive_some(std::span<std::byte> bytes) {
    return moved(::recv(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT), "receiving from");
}

void Link::send_all(std::span<const std::byte> bytes) {
    while (!bytes.empty())
        bytes = bytes.subspan(
            moved(::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL), "sending to"));
}

size_t Link::receive_at_least(size_t least, std::span<std::byte> bytes) {
    const int flags = least == bytes.size() ? MSG_WAITALL : 0;
    size_t got = 0;
    while (got < least)
        got +=
            moved(::recv(socket_, bytes.data() + got, bytes.size() - got, flags), "receiving from");
    return got;
}

void wait_for(const Link& out, bool want_out, const Link& in, bool want_in) {
    pollfd sockets[2] = {{want_out ? out.socket() : -1, POLLOUT, 0},
                         {want_in ? in.socket() : -1, POLLIN, 0}};
    // Interrupted or failed: the next send or receive says what is wrong.
    ::poll(sockets, 2, -1);
}

}  // namespace convoy
