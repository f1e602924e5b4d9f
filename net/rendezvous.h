// rendezvous.h — how a rank finds its job: dial the coordinator until it answers, send JOIN, wait
// for WELCOME, then open the edges to its neighbours.
#pragma once

#include <future>
#include <vector>

#include "net/communicator.h"
#include "net/link.h"
#include "net/membership.h"

namespace convoy {

struct Connected {
    wire::Welcome welcome;
    std::vector<Link> links;  // by rank; closed where this rank has no edge
    tcp::endpoint first;      // the coordinator
    Addresses from;           // of CONVOY_IFACE
    std::function<size_t(size_t)> limit;
    std::string what = {};  // of a newcomer, which has no ring yet: wire::Offer::what
    std::string error;      // why it failed (time up, refused, an edge that did not open), or ""
};

// Runs on the control thread of `membership`; the future carries no exception.
std::future<Connected> rendezvous(Membership& membership, JoinOptions options);

// Leaves a ring that broke and finds the way into the next one (rejoin.cpp): the coordinator, or
// the rank that succeeds it, which may be this one. `first`: where the job's first coordinator was;
// `step`, `planned`: of Communicator::regroup. Runs and answers as rendezvous().
std::future<Connected> rejoin(Membership& membership, tcp::endpoint first, Addresses from,
                              int64_t step, bool planned);

// Asks the rank that advertises `peer` what a newcomer must know; `first` as below. Throws Error.
asio::awaitable<wire::Offer> ask_for_offer(std::string peer, tcp::endpoint first, Addresses from,
                                           TlsContext tls);
// The job as a newcomer sees it that advertises itself as `me`: it comes after the ranks, and there
// is no ring.
wire::Welcome as_newcomer(const wire::Offer& offer, const wire::Member& me);

// Host and port of a peer that advertises `peer`; `first` as above, unspecified: here. Throws
// Error.
std::pair<std::string, uint16_t> reachable(const std::string& peer, const tcp::endpoint& first);

// Opens the edges of this rank (edges.cpp), each from one of this machine's addresses `from`
// (none: the system chooses). The higher rank of a pair dials the lower one; edges that arrive
// before WELCOME wait in the membership. Throws Error.
asio::awaitable<std::vector<Link>> open_edges(Membership& membership, const wire::Welcome& welcome,
                                              tcp::endpoint coordinator, const Addresses& from);

// The same for edges to `peers` alongside the ring, which is open; kind: kGroupEdge or kLinkEdge.
asio::awaitable<std::vector<Link>> open_more_edges(Membership& membership, wire::Welcome welcome,
                                                   tcp::endpoint coordinator, Addresses from,
                                                   std::vector<int> peers, uint32_t kind);

}  // namespace convoy
