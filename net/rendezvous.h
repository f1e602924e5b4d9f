// rendezvous.h — how a rank finds its job: dial the coordinator until it answers, say JOIN, wait
// for WELCOME, then open the edges to its neighbours.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "net/communicator.h"
#include "net/link.h"
#include "net/membership.h"

namespace convoy {

using Addresses = std::vector<asio::ip::address>;

struct Connected {
    wire::Welcome welcome;
    std::vector<Link> links;  // by rank; closed where this rank has no edge
};

// Runs on the control thread of `membership`. Throws Error: the time is up, this rank is refused,
// or an edge cannot be opened.
asio::awaitable<Connected> rendezvous(Membership& membership, JoinOptions options);

// Opens the edges of this rank (edges.cpp): the higher rank of a pair dials the lower one.
// Edges that came before WELCOME did wait in the membership. Throws Error.
asio::awaitable<std::vector<Link>> open_edges(Membership& membership, const wire::Welcome& welcome,
                                              tcp::endpoint coordinator, const Addresses& from);

// One attempt to reach any of the addresses of host:port, each for `patience`, from one of our own
// addresses (of --iface; none: as the routes say). Throws Error with the reasons, in words
// ("connection refused").
asio::awaitable<tcp::socket> dial(asio::io_context& io, const std::string& host, uint16_t port,
                                  const Addresses& from, std::chrono::milliseconds patience);

}  // namespace convoy
