// call_hooks.h — lets a test intercept system calls of this process: on sockets that Asio uses
// (control connections, connecting links; the ring has JoinOptions::limit), and on files. Not
// called in builds with sanitizers, which intercept the same calls. Set hooks before threads.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace convoy {

// Returns how many of the given bytes the call may move; 0 bytes: it connects or accepts.
inline std::function<size_t(size_t)> on_socket_call;
inline std::function<void()> on_file_call;   // fsync and rename
inline std::function<void()> on_entry_call;  // symlink, unlinkat and renameat2
inline std::function<int()> read_error;      // of pread: an error number, or 0
inline std::function<void()> on_wait;        // called instead of a wait for a time
// The call that the file system rejects: "symlink", "fsync", "rename" (of folders).
inline std::string refused;
inline std::function<void()> on_look_up;  // of a host's addresses
inline bool cannot_exchange = false;      // the file system cannot exchange two files

// Resets a connection of this process, of the ring or a control connection. which: any number.
void reset_link(int which, bool control);

}  // namespace convoy
