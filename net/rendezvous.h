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
    std::string error;        // why it failed (time up, refused, an edge that did not open), or ""
};

// Runs on the control thread of `membership`; the future carries no exception.
std::future<Connected> rendezvous(Membership& membership, JoinOptions options);

// Opens the edges of this rank (edges.cpp), each from one of this machine's addresses `from`
// (none: the system chooses). The higher rank of a pair dials the lower one; edges that arrive
// before WELCOME wait in the membership. Throws Error.
asio::awaitable<std::vector<Link>> open_edges(Membership& membership, const wire::Welcome& welcome,
                                              tcp::endpoint coordinator, const Addresses& from);

}  // namespace convoy
