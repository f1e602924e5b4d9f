// joining.h — the way of a rank to WELCOME, to its first ring and to each later one. open_links.h
// goes on from there.
//
//    SEARCH ──connect, JOIN, STATUS──► WAIT ──WELCOME──► kConnecting (membership.h)
//       ▲                                │ the connection is lost; REFUSE; a lower rank serves too
//       └────────────────────────────────┘
//
//    SEARCH  the first ring: at --coord, until --join-timeout; rank 0 serves the coordinator
//            each later one: the last coordinator, then each rank in order (succession.h): the
//            first that lives serves a coordinator, and so does this rank when its own turn comes
//    WAIT    the coordinator gathers all ranks (roster.h), or decides which continue (regroup.h)
#pragma once

#include <string>

#include "net/control/membership.h"

namespace convoy {

// Both run on the control thread of `membership`, and throw Error (time up, refused).
// membership.welcome() is then of the next ring. A newcomer has no ring yet and gets
// wire::Offer::what, any other rank "".
asio::awaitable<std::string> join_first(Membership& membership, JoinOptions options);
// Leaves a ring that broke. `step`, `planned`: as in Communicator::regroup.
asio::awaitable<void> join_next(Membership& membership, int64_t step, bool planned);

}  // namespace convoy
