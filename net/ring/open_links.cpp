#include "net/ring/open_links.h"

#include <algorithm>

#include "net/control/joining.h"
#include "net/control/roster.h"
#include "net/ring/ring.h"

namespace convoy {

using std::chrono::milliseconds;

namespace {

class LinkOpener {
 public:
    // kind: bits of the generation, for links alongside those of the ring.
    LinkOpener(Membership& membership, const wire::Welcome& welcome, std::vector<int> peers,
               uint32_t kind = 0)
        : membership_(membership),
          welcome_(welcome),
          peers_(std::move(peers)),
          generation_(welcome.generation | kind),
          links_(size_t(welcome.world)) {}

    asio::awaitable<void> open() {
        for (int rank : peers_)
            if (rank < welcome_.rank) co_await dial_peer(rank);
        for (co_await accept_waiting(); !missing().empty(); co_await accept_waiting())
            co_await wait_for_news();
    }

    asio::awaitable<void> open_ring() {
        co_await open();
        membership_.ready();
        while (!is_open()) {
            co_await wait_for_news();
            co_await accept_waiting();  // a peer that has not seen the answer dials again
        }
    }

    // Tells the coordinator, which decides which rank is lost.
    asio::awaitable<void> tell(const std::string& why) {
        membership_.send(
            wire::encode(wire::Abort{unreached_, why, wire::End::ring, welcome_.generation}));
        deadline_ = Clock::now() + kVerdict * welcome_.rules.silence();
        while (!is_open() && Clock::now() < deadline_) co_await wait_for_news();
    }

    std::vector<Link> take() { return std::move(links_); }

 private:
    asio::awaitable<void> dial_peer(int rank) {
        const auto [host, port] =
            reachable(welcome_.peers[size_t(rank)].address, membership_.first());
        std::string why;
        for (int attempt = 1; attempt <= kLinkAttempts; ++attempt) {
            membership_.status().throw_if_ended();
            try {
                Socket socket = co_await dial(host, port, membership_.tls(), kDialPatience);
                const wire::Link link{welcome_.job, welcome_.rank, rank, generation_};
                co_await within(kDialPatience, socket, shake_hands(link, socket));
                add_link(rank, std::move(socket));
                co_return;
            } catch (const std::system_error& e) {
                why = reason(e.code());
            } catch (const TimedOut&) {
                why = "it accepts connections but does not answer";
            } catch (const Error& e) {
                why = e.what();
            }
            co_await sleep_for(kLinkPause * attempt);
        }
        membership_.status().throw_if_ended();
        unreached_ = rank;
        fail("it cannot reach ", name(rank), " at ", host, ":", port, ": ", why,
             "; is a firewall in the way, or --port or --advertise of ", name(rank), " wrong?");
    }

    asio::awaitable<void> shake_hands(const wire::Link& mine, Socket& socket) {
        set_options(socket);
        co_await write_message(socket, wire::encode(mine));
        Message answer;
        co_await read_message(socket, wire::kJoinLimit, answer);
        if (answer.header.type == wire::Type::refuse)
            fail(wire::decode<wire::Refuse>(answer.body).why);
        const auto link = wire::decode<wire::Link>(answer.body);
        if (link.job != mine.job || link.from != mine.to || link.to != mine.from)
            fail("rank ", link.from, " of another job answers there");
    }

    asio::awaitable<void> accept_waiting() {
        auto& waiting = membership_.incoming_links();
        for (size_t i = 0; i < waiting.size();) {  // a rank that dialled again comes later
            if (waiting[i].link.generation != generation_ &&
                waiting[i].link.is_alongside(welcome_)) {
                ++i;  // of another kind: this rank is not ready for it yet
                continue;
            }
            IncomingLink incoming = std::move(waiting[i]);
            waiting.erase(waiting.begin() + ptrdiff_t(i));
            const wire::Link& link = incoming.link;
            if (link.job != welcome_.job || link.generation != generation_ ||
                link.to != welcome_.rank || link.from <= welcome_.rank ||
                link.from >= welcome_.world) {
                membership_.listener().log_refusal(cat("refused a link from rank ", link.from,
                                                       " to rank ", link.to,
                                                       " of another job or generation"));
                continue;
            }
            try {
                const std::string answer =
                    wire::encode(wire::Link{welcome_.job, link.to, link.from, link.generation});
                co_await within(kDialPatience, incoming.socket,
                                write_message(incoming.socket, answer));
                add_link(link.from, std::move(incoming.socket));
                Link& added = links_[size_t(link.from)];
                if (added.has_ended()) added = Link();  // it has given up, and dials again
            } catch (const std::exception&) {
                // The peer has hung up: it dials again, or reports an error of its own.
            }
        }
    }

    asio::awaitable<void> wait_for_news() {
        membership_.status().throw_if_ended();
        const auto left = std::chrono::ceil<milliseconds>(deadline_ - Clock::now());
        const bool news = co_await membership_.wait_for_news(std::max(left, milliseconds(0)));
        membership_.status().throw_if_ended();
        if (news) co_return;
        const std::string names = missing();
        for (int rank : peers_)
            if (!has_link(rank)) unreached_ = rank;
        fail(names.empty() ? "the other ranks did not open their links" : names + " did not dial",
             " within ", kAllLinks * welcome_.rules.silence_ms / 1000, " s of the start");
    }

    // The names of the ranks that have not dialled yet.
    std::string missing() const {
        std::string names;
        for (int rank : peers_)
            if (!has_link(rank)) names += (names.empty() ? "" : ", ") + name(rank);
        return names;
    }

    bool is_open() const { return membership_.state() == RankState::kOpen; }
    bool has_link(int rank) const { return links_[size_t(rank)].is_open(); }

    void add_link(int rank, Socket socket) {
        std::error_code gone;
        const tcp::endpoint peer = socket.remote_endpoint(gone);
        if (!gone) check_route(rank, peer.address());
        links_[size_t(rank)] = Link(socket.release(), name(rank), std::move(socket.tls));
    }

    // Logs a peer if packets to it leave by another interface than packets to the coordinator. On a
    // machine with two networks this is no error, but often slow.
    void check_route(int rank, const asio::ip::address& peer) const {
        const auto coordinator = membership_.first().address();
        for (const auto& address : {peer, coordinator})
            if (is_loopback(address) || !interface_with(address).empty()) return;
        const std::string used = interface_towards(peer), usual = interface_towards(coordinator);
        if (!used.empty() && !usual.empty() && used != usual)
            membership_.log().notice(
                "traffic to ", name(rank), " leaves by ", used, ", not by ", usual,
                " like traffic to the coordinator; choose another address with ",
                "--advertise of that rank");
    }

    std::string name(int rank) const { return rank_name(welcome_.peers[size_t(rank)]); }

    Membership& membership_;
    const wire::Welcome& welcome_;
    std::vector<int> peers_;
    const uint32_t generation_;
    std::vector<Link> links_;
    int unreached_ = -1;  // the rank for which it ends
    Clock::time_point deadline_ = Clock::now() + kAllLinks * welcome_.rules.silence();
};

// The higher rank of a pair dials the lower one; links that arrive before WELCOME wait in the
// membership.
asio::awaitable<std::vector<Link>> open_ring_links(Membership& membership,
                                                   const wire::Welcome& welcome) {
    std::vector<int> peers = neighbours(welcome.rank, welcome.ring);
    if (welcome.rules.shm) {  // the first ranks of the hosts are a ring too
        std::vector<int> firsts;
        for (const auto& host : hosts_of(welcome.ring, welcome.peers))
            firsts.push_back(host.front());
        if (std::ranges::find(firsts, welcome.rank) != firsts.end())
            for (const int rank : neighbours(welcome.rank, firsts))
                if (std::ranges::find(peers, rank) == peers.end()) peers.push_back(rank);
    }
    LinkOpener links(membership, welcome, std::move(peers));
    std::string why;
    try {
        co_await links.open_ring();
        co_return links.take();
    } catch (const Error& e) {
        why = e.what();
    }
    membership.status().throw_if_ended();
    try {
        if (welcome.rules.elastic) co_await links.tell(why);
        if (membership.state() == RankState::kOpen) co_return links.take();
    } catch (const Error&) {
        // The coordinator has named the lost rank, or has not answered in time.
    }
    membership.abort(why);  // tells the other ranks, unless the job has ended
    membership.status().throw_if_ended();
    co_return links.take();
}

}  // namespace

asio::awaitable<Connected> first_ring(Membership& membership, JoinOptions options) {
    Connected connected;
    connected.what = co_await join_first(membership, std::move(options));
    connected.welcome = membership.welcome();
    if (connected.welcome.ring.empty()) co_return connected;  // a newcomer
    try {
        connected.links = co_await open_ring_links(membership, connected.welcome);
    } catch (const RingBroken&) {  // which the first collective says
        connected.links.resize(size_t(connected.welcome.world));
    }
    co_return connected;
}

asio::awaitable<Connected> next_ring(Membership& membership, int64_t step, bool planned) {
    for (;;) {
        co_await join_next(membership, step, planned);
        Connected connected{membership.welcome()};
        try {
            connected.links = co_await open_ring_links(membership, connected.welcome);
            co_return connected;
        } catch (const RingBroken&) {
            // Another rank is lost: tries again.
        }
    }
}

asio::awaitable<std::vector<Link>> open_more_links(Membership& membership, wire::Welcome welcome,
                                                   std::vector<int> peers, uint32_t kind) {
    LinkOpener links(membership, welcome, std::move(peers), kind);
    co_await links.open();
    co_return links.take();
}

}  // namespace convoy
