// socket_calls.h — a test's word before each call of this process on a socket that Asio reads and
// writes: the control connections and the dialling of edges. The ring has JoinOptions::limit.
#pragma once

#include <cstddef>
#include <functional>

namespace convoy {

// How many of so many bytes the call may move; 0 bytes: it connects or accepts. Called by the
// thread that calls. Set it before there are threads. Never called in builds with sanitizers, which
// have such calls themselves.
inline std::function<size_t(size_t)> on_socket_call;

// The connection of the ring, one of those of this process, is reset: both ends see an error at
// their next call, nobody has ended. which: any number.
void reset_link(int which);

}  // namespace convoy
