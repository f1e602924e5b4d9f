// rendezvous.h — how a rank finds its job: dial the coordinator until it answers, send JOIN, wait
// for WELCOME, then open the edges to its neighbours.
#pragma once

#include <vector>

#include "net/communicator.h"
#include "net/link.h"
#include "net/membership.h"

namespace convoy {

struct Connected {
    wire::Welcome welcome;
    std::vector<Link> links = {};  // by rank; closed where this rank has no edge
    std::string what = {};         // of a newcomer, which has no ring yet: wire::Offer::what
};

// Finds the job and enters its ring. On the control thread of `membership`, as all below. Throws
// Error (time up, refused, an edge that did not open).
asio::awaitable<Connected> rendezvous(Membership& membership, JoinOptions options);

// Leaves a broken ring and enters the next one (rejoin.cpp): finds the coordinator, or the rank
// that succeeds the coordinator, which may be this rank. `step`, `planned`: as in
// Communicator::regroup. Throws Error.
asio::awaitable<Connected> rejoin(Membership& membership, int64_t step, bool planned);

// Host and port of a peer that advertises `peer`. `first`: the address of the job's first
// coordinator; unspecified: this machine. Throws Error.
std::pair<std::string, uint16_t> reachable(const std::string& peer, const tcp::endpoint& first);

// Opens the edges of this rank (edges.cpp). The higher rank of a pair dials the lower one; edges
// that arrive before WELCOME wait in the membership. Throws Error.
asio::awaitable<std::vector<Link>> open_edges(Membership& membership, const wire::Welcome& welcome);

// The same for edges to `peers` alongside the ring, which is open; kind: kGroupEdge or kLinkEdge.
asio::awaitable<std::vector<Link>> open_more_edges(Membership& membership, wire::Welcome welcome,
                                                   std::vector<int> peers, uint32_t kind);

}  // namespace convoy
