#include "net/ring/link.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace convoy {

Link::Link(int socket, std::string peer, std::unique_ptr<Tls> tls)
    : socket_(socket), peer_(std::move(peer)), tls_(std::move(tls)) {
    int waits = tls_ ? 1 : 0;  // Asio leaves its sockets non-blocking
    if (ioctl(socket_, FIONBIO, &waits) != 0) moved(-1, "setting up");
}

Link& Link::operator=(Link&& other) noexcept {
    std::swap(socket_, other.socket_);
    std::swap(peer_, other.peer_);
    std::swap(tls_, other.tls_);
    std::swap(limit_, other.limit_);
    return *this;
}

Link::~Link() {
    if (socket_ >= 0) ::close(socket_);
}

bool Link::has_ended() const {
    pollfd entry{socket_, POLLRDHUP, 0};
    return ::poll(&entry, 1, 0) > 0;
}

void Link::shut() noexcept {
    if (socket_ >= 0) ::shutdown(socket_, SHUT_RDWR);  // an error means that it is dead already
}

// The number of bytes that a socket call moved; 0 if the call would block.
size_t Link::moved(ssize_t result, const char* doing) const {
    if (result > 0) return size_t(result);
    if (result < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    const bool closed = result == 0 || errno == ECONNRESET || errno == EPIPE;
    throw LinkLost(
        cat(doing, " ", peer_, ": ", closed ? "connection closed" : std::strerror(errno)));
}

// TLS must send a record in full once it has begun, so no limit cuts the record.
size_t Link::send(std::span<const std::byte> bytes, int flags) {
    const size_t n = limited(bytes.size());
    return moved(tls_ ? tls_->write(bytes) : ::send(socket_, bytes.data(), n, flags | MSG_NOSIGNAL),
                 "sending to");
}

size_t Link::receive(std::span<std::byte> bytes, int flags) {
    const size_t n = limited(bytes.size());
    return moved(tls_ ? tls_->read(bytes.first(n)) : ::recv(socket_, bytes.data(), n, flags),
                 "receiving from");
}

size_t Link::send_some(std::span<const std::byte> bytes, bool more_follows) {
    return send(bytes, MSG_DONTWAIT | (more_follows ? MSG_MORE : 0));
}

size_t Link::receive_some(std::span<std::byte> bytes) { return receive(bytes, MSG_DONTWAIT); }

void Link::send_all(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const size_t sent = send(bytes, 0);
        if (sent == 0) wait_for(*this, true, *this, false);
        bytes = bytes.subspan(sent);
    }
}

size_t Link::receive_at_least(size_t least, std::span<std::byte> bytes) {
    const int flags = least == bytes.size() ? MSG_WAITALL : 0;
    size_t got = 0;
    while (got < least) {
        const size_t came = receive(bytes.subspan(got), flags);
        if (came == 0) wait_for(*this, false, *this, true);
        got += came;
    }
    return got;
}

void wait_for(const Link& out, bool want_out, const Link& in, bool want_in) {
    pollfd sockets[2] = {{want_out ? out.socket() : -1, POLLOUT, 0},
                         {want_in ? in.socket() : -1, POLLIN, 0}};
    // If poll() is interrupted or fails, the next send or receive reports the error.
    ::poll(sockets, 2, -1);
}

}  // namespace convoy
