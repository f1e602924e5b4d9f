#include "net/ring/messenger.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "net/control/membership.h"
#include "net/ring/ring.h"

namespace convoy {

static constexpr size_t kMostAtOnce = 256 << 10;  // bytes of a link, before others have their turn

Messenger::Messenger(Membership& membership, uint32_t generation, std::vector<Link> links)
    : membership_(membership), generation_(generation), ends_(links.size()) {
    for (size_t rank = 0; rank < links.size(); ++rank) ends_[rank].link = std::move(links[rank]);
    if (wake_ < 0) fail("no eventfd: ", std::strerror(errno));
    thread_ = std::thread([this] { run(); });
}

Messenger::~Messenger() {
    closing_ = true;
    wake();
    thread_.join();
    for (End& end : ends_) fail_end(end, std::make_exception_ptr(Error("the link was closed")));
    ::close(wake_);
}

// queue_of(end): the queue for this message of the link to `rank`.
std::future<void> Messenger::enqueue(int rank, auto message, const auto& queue_of) {
    std::future<void> future = message.done.get_future();
    {
        std::lock_guard lock(mutex_);
        End& end = ends_.at(size_t(rank));
        ENSURE(end.link.is_open(), "no link to rank ", rank);
        if (end.failure)
            message.done.set_exception(end.failure);
        else
            queue_of(end)->push_back(std::move(message));
    }
    wake();
    return future;
}

std::future<void> Messenger::send(int rank, std::span<const std::byte> bytes, int channel) {
    Sent message{{}, bytes, {}};
    wire::encode({wire::Type::message, generation_, uint32_t(channel), bytes.size()},
                 message.header);
    return enqueue(rank, std::move(message), [](End& end) { return &end.out; });
}

std::future<void> Messenger::receive(int rank, std::span<std::byte> bytes, int channel,
                                     std::function<void()> then) {
    return enqueue(rank, Wanted{bytes, {}, std::move(then)},
                   [&](End& end) { return &end.in[uint32_t(channel)]; });
}

// Only a thread that waits for a link tells the coordinator that the link broke. A peer that has
// finished closes its links, and then nobody waits for them.
void Messenger::wait(std::future<void>& done) {
    Progress& progress = membership_.progress();
    JobStatus& status = membership_.status();
    ++progress.begun;
    std::exception_ptr error;
    try {
        done.get();
    } catch (const LinkLost& e) {
        membership_.link_lost(e.what());
        error = status.error();
    } catch (const PeerMistake& e) {
        membership_.report(e.rank, e.what());
        error = status.error();
    } catch (...) {
        error = std::current_exception();
    }
    ++progress.done;
    if (error) std::rethrow_exception(error);
}

void Messenger::shut() noexcept {
    for (End& end : ends_) end.link.shut();
    wake();
}

void Messenger::run() {
    while (!closing_) {
        Done done;
        bool moved = false;
        {
            std::lock_guard lock(mutex_);
            for (size_t rank = 0; rank < ends_.size(); ++rank) {
                End& end = ends_[rank];
                if (!end.link.is_open() || end.failure) continue;
                try {
                    moved |= send_some(end, done);
                    moved |= receive_some(int(rank), end, done);
                } catch (const Error&) {
                    fail_end(end, std::current_exception());
                }
            }
        }
        for (auto& [promise, then] : done) {
            promise.set_value();
            if (then) then();
        }
        if (!moved && done.empty()) wait_for_sockets();
    }
}

bool Messenger::send_some(End& end, Done& done) {
    if (end.out.empty()) return false;
    Sent& message = end.out.front();
    const size_t head = message.header.size();
    const bool in_header = end.sent < head;
    const std::span<const std::byte> rest =
        in_header ? std::span<const std::byte>(message.header).subspan(end.sent)
                  : message.bytes.subspan(end.sent - head);
    size_t n = 0;
    if (!rest.empty())
        n = end.link.send_some(rest.first(std::min(rest.size(), kMostAtOnce)),
                               in_header && !message.bytes.empty());
    end.sent += n;
    membership_.progress().moved += n;
    if (end.sent < head + message.bytes.size()) return n > 0;
    done.emplace_back(std::move(message.done), nullptr);
    end.out.pop_front(), end.sent = 0;
    return true;
}

bool Messenger::receive_some(int rank, End& end, Done& done) {
    constexpr size_t kHead = wire::kHeaderBytes;
    if (!end.has_header()) {
        const size_t n = end.link.receive_some(std::span(end.header_bytes).subspan(end.received));
        end.received += n;
        if (!end.has_header()) return n > 0;
        try {
            end.header = wire::decode(end.header_bytes, UINT64_MAX);
        } catch (const Error& e) {
            throw PeerMistake(rank, cat("invalid data from ", end.link.peer(), ": ", e.what()));
        }
        if (end.header.type != wire::Type::message || end.header.generation != generation_)
            throw PeerMistake(rank, cat(end.link.peer(), " sent ", wire::name(end.header.type),
                                        ", which is no message between ranks"));
    }
    auto& queue = end.wanted();
    if (queue.empty()) return false;
    Wanted& wanted = queue.front();
    if (wanted.bytes.size() != end.header.length)
        throw PeerMistake(
            rank, cat(end.link.peer(), " sent a message of ", end.header.length, " bytes, not of ",
                      wanted.bytes.size(), ": do they train the same model?"));
    const std::span<std::byte> rest = wanted.bytes.subspan(end.received - kHead);
    size_t n = 0;
    if (!rest.empty()) n = end.link.receive_some(rest.first(std::min(rest.size(), kMostAtOnce)));
    end.received += n;
    membership_.progress().moved += n;
    if (n < rest.size()) return n > 0;
    done.emplace_back(std::move(wanted.done), std::move(wanted.then));
    queue.pop_front(), end.received = 0;
    return true;
}

void Messenger::fail_end(End& end, std::exception_ptr failure) {
    end.failure = failure;
    for (Sent& message : end.out) message.done.set_exception(failure);
    for (auto& [channel, queue] : end.in)
        for (Wanted& wanted : queue) wanted.done.set_exception(failure);
    end.out.clear(), end.in.clear();
}

// Blocks until a socket is ready, or somebody calls wake().
void Messenger::wait_for_sockets() {
    std::vector<pollfd> sockets{{wake_, POLLIN, 0}};
    {
        std::lock_guard lock(mutex_);
        for (End& end : ends_) {
            if (!end.link.is_open() || end.failure) continue;
            const bool reads = !end.has_header() || !end.wanted().empty();
            const int events = (end.out.empty() ? 0 : POLLOUT) | (reads ? POLLIN : 0);
            if (events != 0) sockets.push_back({end.link.socket(), short(events), 0});
        }
    }
    ::poll(sockets.data(), sockets.size(), -1);
    eventfd_t calls;
    eventfd_read(wake_, &calls);
}

}  // namespace convoy
