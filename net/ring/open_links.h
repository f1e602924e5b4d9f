// open_links.h — the way of a rank into its first ring and into each later one: WELCOME, the links
// to its neighbours, READY, GENERATION.
#pragma once

#include <string>
#include <vector>

#include "net/control/membership.h"
#include "net/ring/link.h"

namespace convoy {

struct Connected {
    wire::Welcome welcome;
    std::vector<Link> links = {};  // by rank; closed where this rank has no link
    std::string what = {};         // of a newcomer, which has no ring yet: wire::Offer::what
};

// Both run on the control thread of `membership`, and throw Error. `step`, `planned`: as in
// Communicator::regroup. If the first ring breaks while it is formed, its links are closed.
asio::awaitable<Connected> first_ring(Membership& membership, JoinOptions options);
asio::awaitable<Connected> next_ring(Membership& membership, int64_t step, bool planned);

// Opens links to `peers` alongside those of the ring, which is open; kind: kGroupLink or
// kMessageLink.
asio::awaitable<std::vector<Link>> open_more_links(Membership& membership, wire::Welcome welcome,
                                                   std::vector<int> peers, uint32_t kind);

}  // namespace convoy
