// fetch.cpp — see fetch.h.
#include "net/fetch.h"

#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>

#include "net/stream_sum.h"

namespace convoy {

namespace {

constexpr size_t kInFlight = 16;                // requests to one rank whose answers have not come
constexpr std::chrono::seconds kGroupEdge{30};  // until the ranks of a group have dialled
constexpr size_t kMostServed = 16;              // connections that ask, beside two of each rank

// Reads a message's header. The body is left for the caller.
wire::Header receive_header(Link& link, uint64_t limit) {
    std::array<std::byte, wire::kHeaderBytes> bytes;
    link.receive_all(bytes);
    return wire::decode(bytes, limit);
}

std::string receive_body(Link& link, const wire::Header& header) {
    std::string body(header.length, '\0');
    link.receive_all(std::as_writable_bytes(std::span(body)));
    return body;
}

void send(Link& link, const std::string& message) {
    link.send_all(std::as_bytes(std::span(message)));
}

// Follows the bytes that answer a request: neither was damaged on its way.
uint64_t sum_of(const wire::Request& request, std::span<const std::byte> bytes) {
    const std::string message = wire::encode(request);
    return stream_sum(std::as_bytes(std::span(message))) + stream_sum(bytes);
}

}  // namespace

struct RankFetcher::Asker {
    struct Request {
        wire::Request what;
        std::span<std::byte> bytes;
        std::promise<void> done;
    };

    std::mutex mutex;
    std::condition_variable wake;
    std::deque<Request> queue;
    bool closing = false;
    std::exception_ptr failure;  // of all requests from now on
    Link link;
    std::thread thread;

    std::future<void> ask(Request request) {
        std::future<void> future = request.done.get_future();
        std::lock_guard lock(mutex);
        if (failure)
            request.done.set_exception(failure);
        else
            queue.push_back(std::move(request));
        wake.notify_one();
        return future;
    }
    void close() {
        {
            std::lock_guard lock(mutex);
            closing = true;
            link.shut();
        }
        wake.notify_one();
    }

    void run(RankFetcher& fetcher, int rank) {
        std::deque<Request> sent;
        std::string why;
        try {
            connect(fetcher, rank);
            for (;; sent.pop_front()) {
                send_waiting(sent);
                receive(fetcher, sent.front());
            }
        } catch (const Error& e) {
            why = e.what();
        }
        JobStatus& status = fetcher.membership_.status();
        if (!is_closing() && fetcher.me_.rules.elastic)
            fetcher.membership_.link_lost(why);
        else if (!is_closing())
            status.wait_for_cause(kFirstCause);
        try {
            status.throw_if_ended();
        } catch (const Error& cause) {
            why = cause.what();
        }
        std::lock_guard lock(mutex);
        failure = std::make_exception_ptr(RankLost(why));
        for (auto* requests : {&sent, &queue})
            for (Request& request : *requests) request.done.set_exception(failure);
        queue.clear();
    }

 private:
    bool is_closing() {
        std::lock_guard lock(mutex);
        return closing;
    }
    void connect(RankFetcher& fetcher, int rank) {
        Link edge = fetcher.dial(rank, false);
        std::lock_guard lock(mutex);
        link = std::move(edge);
        if (closing) fail("the job has ended");
    }
    // Sends what waits, as far as it may; blocks while there is nothing to send or to receive.
    void send_waiting(std::deque<Request>& sent) {
        std::string messages;
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return closing || !queue.empty() || !sent.empty(); });
        if (closing) fail("the job has ended");
        for (; !queue.empty() && sent.size() < kInFlight; queue.pop_front()) {
            messages += wire::encode(queue.front().what);
            sent.push_back(std::move(queue.front()));
        }
        lock.unlock();
        if (!messages.empty()) send(link, messages);
    }
    // The answer to `request`. REFUSE is its error alone.
    void receive(RankFetcher& fetcher, Request& request) {
        uint64_t sum;
        const wire::Header header = receive_header(link, Fetcher::kMostBytes + sizeof sum);
        if (header.type == wire::Type::refuse) {
            const auto refusal = wire::decode<wire::Refuse>(receive_body(link, header));
            request.done.set_exception(
                std::make_exception_ptr(Error(cat(link.peer(), ": ", refusal.why))));
        } else if (header.type != wire::Type::bytes ||
                   header.length != request.bytes.size() + sizeof sum) {
            fail(link.peer(), " sent a ", wire::name(header.type), " message of ", header.length,
                 " bytes, not the ", request.bytes.size(), " it was asked for and their sum");
        } else {
            link.receive_all(request.bytes);
            link.receive_all(std::as_writable_bytes(std::span(&sum, 1)));
            fetcher.membership_.progress().moved += request.bytes.size();
            if (sum != sum_of(request.what, request.bytes))
                fail("data from ", link.peer(), " was damaged on its way");
            request.done.set_value();
        }
    }
};

RankFetcher::RankFetcher(Membership& membership, const wire::Welcome& me, Dial dial,
                         ServeBytes serve)
    : membership_(membership), me_(me), dial_(std::move(dial)), serve_(std::move(serve)) {
    set_on_edge([this](Socket socket, wire::Edge edge) { accept(std::move(socket), edge); });
}

RankFetcher::~RankFetcher() = default;

void RankFetcher::close() {
    set_on_edge(nullptr);
    shut();
    for (auto& [rank, asker] : askers_) asker->thread.join();
    for (auto& server : servers_) server->thread.join();
}

// On the control thread, where the listener uses it; done when this returns.
void RankFetcher::set_on_edge(std::function<void(Socket, wire::Edge)> on_edge) {
    std::promise<void> done;
    asio::post(membership_.io(), [&] {
        membership_.listener().on_edge = std::move(on_edge);
        done.set_value();
    });
    done.get_future().get();
}

void RankFetcher::shut() noexcept {
    std::lock_guard lock(mutex_);
    shut_ = true;
    group_changed_.notify_all();
    for (auto& [rank, asker] : askers_) asker->close();
    for (auto& server : servers_) server->link.shut();
}

std::future<void> RankFetcher::fetch(int rank, uint32_t file, uint64_t offset,
                                     std::span<std::byte> bytes, int line) {
    ENSURE(rank >= 0 && rank < me_.world && rank != me_.rank && bytes.size() <= kMostBytes,
           bytes.size(), " bytes of rank ", rank);
    std::lock_guard lock(mutex_);
    std::unique_ptr<Asker>& asker = askers_[{rank, line}];
    if (!asker) {
        asker = std::make_unique<Asker>();
        if (shut_) asker->close();
        asker->thread = std::thread([this, rank, to = asker.get()] { to->run(*this, rank); });
    }
    return asker->ask({{file, uint32_t(bytes.size()), offset}, bytes, {}});
}

Link RankFetcher::dial(int rank, bool group) {
    const auto dialled = std::make_shared<std::promise<Link>>();
    asio::co_spawn(membership_.io(), dial_(rank, group),
                   [dialled](std::exception_ptr error, Link edge) {
                       error ? dialled->set_exception(error) : dialled->set_value(std::move(edge));
                   });
    return dialled->get_future().get();
}

// The higher rank dials, as for the ring of all.
Link RankFetcher::group_link(int rank) {
    if (rank < me_.rank) return dial(rank, true);
    std::unique_lock lock(mutex_);
    group_changed_.wait_for(lock, kGroupEdge, [&] { return shut_ || group_.contains(rank); });
    membership_.status().throw_if_ended();
    if (!group_.contains(rank))
        fail(rank_name(rank, me_.peers[size_t(rank)].address), " did not dial within ",
             kGroupEdge.count(), " s of the start");
    return std::move(group_.extract(rank).mapped());
}

void RankFetcher::accept(Socket socket, const wire::Edge& edge) {
    std::lock_guard lock(mutex_);
    const bool group = edge.generation == (me_.generation | wire::kGroupEdge);
    if (shut_ || edge.job != me_.job || (edge.generation != me_.generation && !group) ||
        edge.to != me_.rank || (group && (group_.contains(edge.from) || edge.from <= me_.rank)) ||
        edge.from < 0 || edge.from >= me_.world ||
        servers_.size() >= kMostServed + 2 * size_t(me_.world)) {
        membership_.listener().log_refusal(
            cat("refused to serve rank ", edge.from, " of another job"));
        return;
    }
    const std::string peer = rank_name(edge.from, me_.peers[size_t(edge.from)].address);
    if (group) {
        Link link(socket.release(), peer, std::move(socket.tls));
        try {
            send(link, wire::encode(wire::Edge{edge.job, edge.to, edge.from, edge.generation}));
            group_.emplace(edge.from, std::move(link));
        } catch (const LinkLost&) {
            // It dials again.
        }
        return group_changed_.notify_all();
    }
    auto server = std::make_unique<Server>();
    server->link = Link(socket.release(), peer, std::move(socket.tls));
    server->thread = std::thread([this, edge, to = server.get()] { answer(to->link, edge); });
    servers_.push_back(std::move(server));
}

void RankFetcher::answer(Link& link, const wire::Edge& edge) {
    try {
        send(link, wire::encode(wire::Edge{edge.job, edge.to, edge.from, edge.generation}));
        std::vector<std::byte> bytes;
        for (;;) {
            const wire::Header header = receive_header(link, wire::kGuestLimit);
            const auto asked = wire::decode<wire::Request>(receive_body(link, header));
            std::string refusal;
            try {
                if (asked.length > kMostBytes) fail("asked for ", asked.length, " bytes at once");
                bytes.resize(wire::kHeaderBytes + asked.length + sizeof(uint64_t));
                const auto served = std::span(bytes).subspan(wire::kHeaderBytes, asked.length);
                serve_(asked.file, asked.offset, served);
                const uint64_t sum = sum_of(asked, served);
                std::memcpy(served.data() + asked.length, &sum, sizeof sum);
            } catch (const Error& e) {
                refusal = e.what();
            }
            if (!refusal.empty()) {
                send(link, wire::encode(wire::Refuse{false, refusal}));
                continue;
            }
            wire::encode({wire::Type::bytes, edge.generation, 0, bytes.size() - wire::kHeaderBytes},
                         std::span(bytes).first<wire::kHeaderBytes>());
            link.send_all(bytes);
            membership_.progress().moved += bytes.size();
        }
    } catch (const LinkLost&) {
        // It has what it wants, or the job ends.
    } catch (const std::exception& e) {
        membership_.log().notice("no longer serves ", link.peer(), ": ", e.what());
    }
    link.shut();
}

}  // namespace convoy
