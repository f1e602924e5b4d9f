// rendezvous.h — how a rank finds its job: dial the coordinator until it answers, send JOIN, wait
// for WELCOME. net/ring/open_links.h goes on from there.
#pragma once

#include <string>

#include "net/control/membership.h"

namespace convoy {

// Finds the job; membership.welcome() is then of its first ring. A newcomer has no ring yet and
// gets wire::Offer::what, any other rank "". On the control thread of `membership`, as rejoin().
// Throws Error (time up, refused).
asio::awaitable<std::string> rendezvous(Membership& membership, JoinOptions options);

// Leaves a broken ring and waits for WELCOME to the next one (rejoin.cpp): finds the coordinator,
// or the rank that succeeds the coordinator, which may be this rank. `step`, `planned`: as in
// Communicator::regroup. Throws Error.
asio::awaitable<void> rejoin(Membership& membership, int64_t step, bool planned);

}  // namespace convoy
