#include "net/link.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace convoy {

Link::Link(int socket, std::string peer, std::unique_ptr<Tls> tls) : peer_(std::move(peer)) {
    set_flow(0, socket, std::move(tls));
}

void Link::set_flow(size_t number, int socket, std::unique_ptr<Tls> tls) {
    if (number == flows_.size()) flows_.emplace_back();
    Flow& flow = flows_.at(number);
    if (flow.socket >= 0) ::close(flow.socket);
    flow = {socket, std::move(tls)};
    int waits = flow.tls ? 1 : 0;  // Asio leaves its sockets non-blocking
    if (ioctl(socket, FIONBIO, &waits) != 0) moved(-1, "setting up", out_);
}

Link& Link::operator=(Link&& other) noexcept {
    std::swap(flows_, other.flows_);
    std::swap(out_, other.out_), std::swap(in_, other.in_);
    std::swap(peer_, other.peer_);
    std::swap(limit_, other.limit_);
    return *this;
}

Link::~Link() {
    for (const Flow& flow : flows_) ::close(flow.socket);
}

bool Link::has_ended() const {
    for (const Flow& flow : flows_) {
        pollfd entry{flow.socket, POLLRDHUP, 0};
        if (::poll(&entry, 1, 0) > 0) return true;
    }
    return false;
}

void Link::shut() noexcept {
    for (const Flow& flow : flows_)
        ::shutdown(flow.socket, SHUT_RDWR);  // an error means that it is dead already
}

// The number of bytes that a socket call moved, by which the place moves on; 0 where it would have
// to wait.
size_t Link::moved(ssize_t result, const char* doing, Place& at) const {
    if (result > 0) {
        at.left -= std::min(at.left, size_t(result));
        if (at.left == 0) at = {(at.flow + 1) % flows_.size()};
        return size_t(result);
    }
    if (result < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    const bool closed = result == 0 || errno == ECONNRESET || errno == EPIPE;
    throw LinkLost(
        cat(doing, " ", peer_, ": ", closed ? "connection closed" : std::strerror(errno)));
}

// A record that TLS has begun to send must be sent in full: no limit is put on it. The last bytes
// of a stripe wait for none that follow: those go elsewhere.
size_t Link::send(std::span<const std::byte> bytes, int flags) {
    const Flow& flow = flows_[out_.flow];
    bytes = bytes.first(most(out_, bytes.size()));
    if (flows_.size() > 1 && bytes.size() == out_.left) flags &= ~MSG_MORE;
    const size_t n = limited(bytes.size());
    return moved(flow.tls ? flow.tls->write(bytes)
                          : ::send(flow.socket, bytes.data(), n, flags | MSG_NOSIGNAL),
                 "sending to", out_);
}

size_t Link::receive(std::span<std::byte> bytes, int flags) {
    const Flow& flow = flows_[in_.flow];
    const size_t n = limited(most(in_, bytes.size()));
    return moved(
        flow.tls ? flow.tls->read(bytes.first(n)) : ::recv(flow.socket, bytes.data(), n, flags),
        "receiving from", in_);
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
    pollfd sockets[2] = {{want_out ? out.socket_out() : -1, POLLOUT, 0},
                         {want_in ? in.socket_in() : -1, POLLIN, 0}};
    // Interrupted or failed: the next send or receive says what is wrong.
    ::poll(sockets, 2, -1);
}

}  // namespace convoy
