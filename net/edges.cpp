// edges.cpp — the connections between ranks, opened once all are known.
#include <algorithm>

#include "net/host.h"
#include "net/rendezvous.h"
#include "net/ring.h"

namespace convoy {

using std::chrono::milliseconds;

namespace {

constexpr milliseconds kDialPatience{5'000};
constexpr milliseconds kAllEdges{30'000};  // from WELCOME until the ring stands
constexpr int kAttempts = 3;

class Edges {
 public:
    Edges(Membership& membership, const wire::Welcome& welcome, tcp::endpoint coordinator,
          const Addresses& from)
        : membership_(membership),
          welcome_(welcome),
          coordinator_(std::move(coordinator)),
          from_(from),
          waiting_(membership.incoming_edges()),
          links_(welcome.world) {}

    asio::awaitable<void> open();
    std::vector<Link> take() { return std::move(links_); }

 private:
    asio::awaitable<void> dial_peer(int rank);
    asio::awaitable<void> accept_waiting();
    asio::awaitable<void> wait_for_news();
    std::pair<std::string, uint16_t> way_to(int rank) const;
    void stand(int rank, tcp::socket socket);
    void compare_ways(int rank, const asio::ip::address& peer) const;
    std::string name(int rank) const { return rank_name(rank, welcome_.peers[rank].address); }

    Membership& membership_;
    const wire::Welcome& welcome_;
    tcp::endpoint coordinator_;
    const Addresses& from_;
    std::vector<IncomingEdge>& waiting_;
    std::vector<Link> links_;
};

asio::awaitable<void> Edges::open() {
    std::vector<int> peers;
    for (int rank : neighbours(welcome_.rank, welcome_.ring)) peers.push_back(rank);
    for (int rank : peers)
        if (rank < welcome_.rank) co_await dial_peer(rank);
    for (;;) {
        co_await accept_waiting();
        membership_.status().check();
        const bool all = std::all_of(peers.begin(), peers.end(),
                                     [&](int rank) { return links_[rank].is_open(); });
        if (all) break;
        co_await wait_for_news();
    }
    membership_.send(wire::encode_empty(wire::Type::ready, welcome_.generation));
    while (!membership_.stands()) {
        co_await wait_for_news();
        membership_.status().check();
    }
}

asio::awaitable<void> Edges::wait_for_news() {
    if (co_await membership_.wait_for_news(kAllEdges)) co_return;
    std::string missing;
    for (int rank : neighbours(welcome_.rank, welcome_.ring))
        if (!links_[rank].is_open()) missing += cat(missing.empty() ? "" : ", ", name(rank));
    fail(missing.empty() ? "the other ranks did not finish their edges" : missing + " did not dial",
         " within ", kAllEdges.count() / 1000, " s of the start");
}

// Where to dial a peer. One that shares a machine with the coordinator may know itself only as
// loopback; from elsewhere it is reached the way the coordinator was.
std::pair<std::string, uint16_t> Edges::way_to(int rank) const {
    auto way = split_address(welcome_.peers[rank].address, "the address of a peer");
    if (means_this_machine(way.first) && !is_loopback(coordinator_.address()))
        way.first = coordinator_.address().to_string();
    return way;
}

asio::awaitable<void> Edges::dial_peer(int rank) {
    const auto [host, port] = way_to(rank);
    std::string why;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
        membership_.status().check();
        try {
            tcp::socket socket = co_await dial(membership_.io(), host, port, from_, kDialPatience);
            set_options(socket);
            const wire::Edge edge{welcome_.job, welcome_.rank, rank};
            const std::string hello = wire::encode(edge, welcome_.generation);
            co_await within(kDialPatience, socket, write_message(socket, hello));
            Message answer;
            co_await within(kDialPatience, socket, read_message(socket, wire::kJoinLimit, answer));
            if (answer.header.type == wire::Type::refuse)
                fail(wire::decode_refuse(answer.body).why);
            const wire::Edge echo = wire::decode_edge(answer.body);
            if (echo.job != edge.job || echo.from != rank || echo.to != welcome_.rank)
                fail("it is rank ", echo.from, " of another job, or mistaken");
            stand(rank, std::move(socket));
            co_return;
        } catch (const std::system_error& e) {
            why = reason(e.code());
        } catch (const TimedOut&) {
            why = "it takes connections and says nothing";
        } catch (const Error& e) {
            why = e.what();
        }
        co_await sleep_for(milliseconds(200) * (attempt + 1));
    }
    membership_.status().check();
    fail("it cannot reach ", name(rank), " at ", host, ":", port, ": ", why,
         "; is a firewall in the way, or --port or --advertise of rank ", rank, " wrong?");
}

asio::awaitable<void> Edges::accept_waiting() {
    while (!waiting_.empty()) {
        IncomingEdge incoming = std::move(waiting_.back());
        waiting_.pop_back();
        const wire::Edge& edge = incoming.edge;
        const bool ours = edge.job == welcome_.job && incoming.generation == welcome_.generation &&
                          edge.to == welcome_.rank && edge.from > welcome_.rank &&
                          edge.from < welcome_.world;
        if (!ours) {
            membership_.log().notice("turned away an edge from rank ", edge.from, " to rank ",
                                     edge.to, " of another job or generation");
            continue;
        }
        try {
            const wire::Edge echo{welcome_.job, welcome_.rank, edge.from};
            const std::string answer = wire::encode(echo, welcome_.generation);
            co_await within(kDialPatience, incoming.socket, write_message(incoming.socket, answer));
            stand(edge.from, std::move(incoming.socket));
        } catch (const std::exception&) {
            // It has hung up: it dials again, or its own error is on the way.
        }
    }
}

// A machine with two networks may send to a peer by another one than was meant: that is no error,
// but often slow, and never what its user thinks of.
void Edges::compare_ways(int rank, const asio::ip::address& peer) const {
    const std::string way = interface_towards(peer);
    if (way.empty() || is_loopback(peer) || !interface_with(peer).empty()) return;
    std::string meant, who;
    if (!from_.empty()) {
        meant = interface_with(from_.front());
        who = cat("by ", meant, " as --iface says");
    } else if (!is_loopback(coordinator_.address()) &&
               interface_with(coordinator_.address()).empty()) {
        meant = interface_towards(coordinator_.address());
        who = cat("by ", meant, " as that to the coordinator; --iface or --advertise of rank ",
                  rank, " chooses another address of it");
    }
    if (!meant.empty() && meant != way)
        membership_.log().notice("traffic to ", name(rank), " leaves by ", way, ", not ", who);
}

void Edges::stand(int rank, tcp::socket socket) {
    std::error_code gone;
    const tcp::endpoint peer = socket.remote_endpoint(gone);
    if (!gone) compare_ways(rank, peer.address());
    socket.non_blocking(false);
    links_[rank] = Link(socket.release(), name(rank));
}

}  // namespace

asio::awaitable<std::vector<Link>> open_edges(Membership& membership, const wire::Welcome& welcome,
                                              tcp::endpoint coordinator, const Addresses& from) {
    Edges edges(membership, welcome, std::move(coordinator), from);
    std::string why;
    try {
        co_await edges.open();
        co_return edges.take();
    } catch (const Error& e) {
        why = e.what();
    }
    // The others learn it from us unless somebody was first.
    membership.abort(-1, why);
    fail(membership.status().cause());
}

}  // namespace convoy
