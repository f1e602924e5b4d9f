// call_hooks.h — a test's word before some of this process's calls: those on sockets that Asio
// reads and writes (control connections, the dialling of edges; the ring has JoinOptions::limit),
// and those that make files last. Never called in builds with sanitizers, which have such calls
// themselves. Both are to be set before there are threads.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace convoy {

// How many of so many bytes the call may move; 0 bytes: it connects or accepts.
inline std::function<size_t(size_t)> on_socket_call;
inline std::function<void()> on_file_call;   // fsync and rename
inline std::function<void()> on_entry_call;  // symlink, unlinkat and renameat2
inline std::function<int()> read_error;      // of pread: an error number, or 0
inline std::function<void()> on_wait;        // a wait that is for time alone: does not wait then
// What the file system refuses: "symlink", "fsync", "rename" (of folders).
inline std::string refused;
inline std::function<void()> on_look_up;  // of a host's addresses
inline bool cannot_exchange = false;      // a file system where files cannot change places

// One of this process's connections, of the ring or to ranks' coordinators, is reset: both ends see
// an error at their next call, nobody has ended. which: any number.
void reset_link(int which, bool control);

}  // namespace convoy
