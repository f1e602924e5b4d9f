// edges.cpp — the connections between ranks, opened once all addresses are known.
#include <algorithm>
#include <cmath>

#include "net/host.h"
#include "net/rendezvous.h"
#include "net/ring.h"

namespace convoy {

using std::chrono::milliseconds;

namespace {

constexpr milliseconds kAllEdges{30'000};  // from WELCOME until the ring is open
constexpr int kAttempts = 3;               // to dial a peer
constexpr milliseconds kVerdict{40'000};   // for the coordinator to say which rank is lost

class Edges {
 public:
    Edges(Membership& membership, const wire::Welcome& welcome, tcp::endpoint coordinator,
          const Addresses& from)
        : membership_(membership),
          welcome_(welcome),
          coordinator_(std::move(coordinator)),
          from_(from),
          peers_(neighbours(welcome.rank, welcome.ring)),
          links_(size_t(welcome.world)),
          flows_(size_t(welcome.world), 1) {
        if (!welcome.rules.shm) return;
        const auto hosts = hosts_of(welcome.ring, welcome.peers);
        for (const int rank : neighbours_of_host(welcome.rank, hosts))
            if (std::ranges::find(peers_, rank) == peers_.end()) peers_.push_back(rank);
    }

    asio::awaitable<void> open();
    asio::awaitable<void> dial_peer(int rank, uint32_t flows);
    asio::awaitable<void> tell(const std::string& why);
    std::vector<Link> take() { return std::move(links_); }

 private:
    asio::awaitable<void> dial_flow(int rank, uint32_t flow, uint32_t& flows);
    asio::awaitable<void> shake_hands(const wire::Edge& edge, Socket& socket);
    asio::awaitable<void> accept_waiting();
    asio::awaitable<void> wait_for_news();
    std::string missing() const;
    bool has_all_flows(int rank) const {
        return links_[size_t(rank)].is_open() &&
               links_[size_t(rank)].flows() == flows_[size_t(rank)];
    }
    void add_flow(int rank, uint32_t flow, Socket socket);
    void check_route(int rank, const asio::ip::address& peer) const;
    std::string name(int rank) const {
        return rank_name(rank, welcome_.peers[size_t(rank)].address);
    }

    Membership& membership_;
    const wire::Welcome& welcome_;
    tcp::endpoint coordinator_;
    const Addresses& from_;
    std::vector<int> peers_;
    std::vector<Link> links_;
    std::vector<uint32_t> flows_;  // that each link is to have
    int unreached_ = -1;           // the rank for which it ends
    Clock::time_point deadline_ = Clock::now() + kAllEdges;
};

asio::awaitable<void> Edges::open() {
    for (int rank : peers_)
        if (rank < welcome_.rank)
            co_await dial_peer(rank, std::min(welcome_.rules.flows, wire::kMostFlows));
    for (co_await accept_waiting(); !missing().empty(); co_await accept_waiting())
        co_await wait_for_news();
    membership_.ready();
    while (!membership_.ring_is_open()) {
        co_await wait_for_news();
        co_await accept_waiting();  // a peer that has not seen the answer dials again
    }
}

// The names of the ranks that have not dialled yet.
std::string Edges::missing() const {
    std::string names;
    for (int rank : peers_)
        if (!has_all_flows(rank)) names += (names.empty() ? "" : ", ") + name(rank);
    return names;
}

asio::awaitable<void> Edges::wait_for_news() {
    membership_.status().throw_if_ended();
    const auto left = std::chrono::ceil<milliseconds>(deadline_ - Clock::now());
    const bool news = co_await membership_.wait_for_news(std::max(left, milliseconds(0)));
    membership_.status().throw_if_ended();
    if (news) co_return;
    const std::string names = missing();
    for (int rank : peers_)
        if (!has_all_flows(rank)) unreached_ = rank;
    fail(names.empty() ? "the other ranks did not open their edges" : names + " did not dial",
         " within ", kAllEdges.count() / 1000, " s of the start");
}

// flows: of the edge; 0: as many as the path needs.
asio::awaitable<void> Edges::dial_peer(int rank, uint32_t flows) {
    co_await dial_flow(rank, 0, flows);
    flows_[size_t(rank)] = flows;
    for (uint32_t flow = 1; flow < flows; ++flow) co_await dial_flow(rank, flow, flows);
    if (flows > 1)
        membership_.log().info("the edge to ", name(rank), " has ", flows, " connections");
}

asio::awaitable<void> Edges::dial_flow(int rank, uint32_t flow, uint32_t& flows) {
    const auto [host, port] = reachable(welcome_.peers[size_t(rank)].address, coordinator_);
    std::string why;
    for (int attempt = 1; attempt <= kAttempts; ++attempt) {
        membership_.status().throw_if_ended();
        try {
            Socket socket = co_await dial(host, port, from_, membership_.tls(), kDialPatience);
            if (flows == 0) flows = flows_for(round_trip_seconds(socket));
            const wire::Edge edge{welcome_.job,        welcome_.rank, rank,
                                  welcome_.generation, flow,          flows};
            co_await within(kDialPatience, socket, shake_hands(edge, socket));
            add_flow(rank, flow, std::move(socket));
            co_return;
        } catch (const std::system_error& e) {
            why = reason(e.code());
        } catch (const TimedOut&) {
            why = "it accepts connections but does not answer";
        } catch (const Error& e) {
            why = e.what();
        }
        co_await sleep_for(milliseconds(200) * attempt);
    }
    membership_.status().throw_if_ended();
    unreached_ = rank;
    fail("it cannot reach ", name(rank), " at ", host, ":", port, ": ", why,
         "; is a firewall in the way, or --port or --advertise of rank ", rank, " wrong?");
}

// Leaves it to the coordinator which rank goes.
asio::awaitable<void> Edges::tell(const std::string& why) {
    membership_.send(
        wire::encode(wire::Abort{unreached_, why, wire::End::ring, welcome_.generation}));
    deadline_ = Clock::now() + kVerdict;
    while (!membership_.ring_is_open() && Clock::now() < deadline_) co_await wait_for_news();
}

asio::awaitable<void> Edges::shake_hands(const wire::Edge& mine, Socket& socket) {
    set_options(socket);
    co_await write_message(socket, wire::encode(mine));
    Message answer;
    co_await read_message(socket, wire::kJoinLimit, answer);
    if (answer.header.type == wire::Type::refuse) fail(wire::decode<wire::Refuse>(answer.body).why);
    const auto edge = wire::decode<wire::Edge>(answer.body);
    if (edge.job != mine.job || edge.from != mine.to || edge.to != mine.from ||
        edge.flow != mine.flow)
        fail("rank ", edge.from, " of another job answers there");
}

asio::awaitable<void> Edges::accept_waiting() {
    for (auto& waiting = membership_.incoming_edges(); !waiting.empty();) {
        IncomingEdge incoming = std::move(waiting.front());  // one that dialled again comes later
        waiting.erase(waiting.begin());
        const wire::Edge& edge = incoming.edge;
        if (edge.job != welcome_.job || edge.generation != welcome_.generation ||
            edge.to != welcome_.rank || edge.from <= welcome_.rank || edge.from >= welcome_.world ||
            edge.flows > wire::kMostFlows || edge.flow >= edge.flows ||
            edge.flow > links_[size_t(edge.from)].flows()) {
            membership_.listener().log_refusal(cat("refused an edge from rank ", edge.from,
                                                   " to rank ", edge.to,
                                                   " of another job or generation"));
            continue;
        }
        try {
            const std::string answer = wire::encode(wire::Edge{
                welcome_.job, edge.to, edge.from, edge.generation, edge.flow, edge.flows});
            co_await within(kDialPatience, incoming.socket, write_message(incoming.socket, answer));
            flows_[size_t(edge.from)] = edge.flows;
            add_flow(edge.from, edge.flow, std::move(incoming.socket));
        } catch (const std::exception&) {
            // The peer has hung up: it dials again, or reports an error of its own.
        }
    }
}

// Logs a peer to which packets leave by another interface than the user chose: on a machine with
// two networks that is no error, but often slow.
void Edges::check_route(int rank, const asio::ip::address& peer) const {
    const std::string used = interface_towards(peer);
    if (used.empty() || is_loopback(peer) || !interface_with(peer).empty()) return;
    std::string chosen, why;
    if (!from_.empty()) {
        chosen = interface_with(from_.front());
        why = "as CONVOY_IFACE says";
    } else if (!is_loopback(coordinator_.address()) &&
               interface_with(coordinator_.address()).empty()) {
        chosen = interface_towards(coordinator_.address());
        why = cat("like traffic to the coordinator; choose another address with CONVOY_IFACE or ",
                  "--advertise of rank ", rank);
    }
    if (!chosen.empty() && chosen != used)
        membership_.log().notice("traffic to ", name(rank), " leaves by ", used, ", not by ",
                                 chosen, " ", why);
}

void Edges::add_flow(int rank, uint32_t flow, Socket socket) {
    std::error_code gone;
    const tcp::endpoint peer = socket.remote_endpoint(gone);
    Link& link = links_[size_t(rank)];
    if (flow > 0) return link.set_flow(flow, socket.release(), std::move(socket.tls));
    if (!gone) check_route(rank, peer.address());
    link = Link(socket.release(), name(rank), std::move(socket.tls));
}

}  // namespace

// A window of 3 MB, half of the 6 MB to which Linux lets a receiver's buffer grow, carries 1 Gbit/s
// for 24 ms.
uint32_t flows_for(double round_trip_seconds) {
    constexpr double kWindowSeconds = 0.024;
    return uint32_t(std::clamp(std::ceil(round_trip_seconds / kWindowSeconds), 1.0, 8.0));
}

// A peer on the machine of the coordinator may know itself only as loopback; from another machine
// it is reached at the address of the coordinator.
std::pair<std::string, uint16_t> reachable(const std::string& peer, const tcp::endpoint& first) {
    auto address = split_address(peer, "the address of a peer");
    if (means_this_machine(address.first) && !first.address().is_unspecified() &&
        !is_loopback(first.address()))
        address.first = first.address().to_string();
    return address;
}

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
    membership.status().throw_if_ended();
    try {
        if (welcome.rules.elastic) co_await edges.tell(why);
        if (membership.ring_is_open()) co_return edges.take();
    } catch (const Error&) {
        // It is said now, or no answer came.
    }
    membership.abort(-1, why);  // tells the other ranks, unless the job has ended
    membership.status().throw_if_ended();
    co_return edges.take();
}

asio::awaitable<Link> dial_edge(Membership& membership, wire::Welcome welcome,
                                tcp::endpoint coordinator, Addresses from, int rank, bool group) {
    if (group) welcome.generation |= wire::kGroupEdge;
    Edges edges(membership, welcome, std::move(coordinator), from);
    co_await edges.dial_peer(rank, 1);
    co_return std::move(edges.take()[size_t(rank)]);
}

}  // namespace convoy
