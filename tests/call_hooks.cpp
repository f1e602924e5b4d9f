#include "tests/call_hooks.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <vector>

namespace convoy {

// Sockets of the ring wait; Asio's do not.
static bool waits(int socket) { return (fcntl(socket, F_GETFL) & O_NONBLOCK) == 0; }

void reset_link(int which, bool control) {
    std::vector<int> links;
    for (int socket = 3; socket < 256; ++socket) {
        sockaddr_storage peer{};
        socklen_t size = sizeof peer;
        if (getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) == 0 &&
            peer.ss_family == AF_INET && waits(socket) != control)
            links.push_back(socket);
    }
    if (links.empty()) return;
    const sockaddr nobody{.sa_family = AF_UNSPEC, .sa_data = {}};
    syscall(SYS_connect, links[size_t(which) % links.size()], &nobody, sizeof nobody);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

static size_t ask(int socket, size_t bytes) {
    return on_socket_call && !waits(socket) ? on_socket_call(bytes) : bytes;
}

static bool refuses_rename(const char* from) {
    return refused == "rename" &&
           std::filesystem::is_directory(std::filesystem::symlink_status(from));
}

// In place of libc's, under names that its headers do not know.
extern "C" {
ssize_t call_send(int, const void*, size_t, int) __asm__("send");
ssize_t call_recv(int, void*, size_t, int) __asm__("recv");
ssize_t call_recv_chk(int, void*, size_t, size_t, int) __asm__("__recv_chk");
int call_connect(int, const void*, socklen_t) __asm__("connect");
int call_accept(int, void*, socklen_t*) __asm__("accept");
int call_fsync(int) __asm__("fsync");
int call_flock(int, int) __asm__("flock");
int call_rename(const char*, const char*) __asm__("rename");
int call_renameat2(int, const char*, int, const char*, unsigned) __asm__("renameat2");
int call_symlink(const char*, const char*) __asm__("symlink");
ssize_t call_pread(int, void*, size_t, off_t) __asm__("pread");
int call_poll(pollfd*, nfds_t, int) __asm__("poll");
int call_unlinkat(int, const char*, int) __asm__("unlinkat");
int call_look_up(const char*, const char*, const void*, void**) __asm__("getaddrinfo");

ssize_t call_send(int socket, const void* bytes, size_t n, int flags) {
    return syscall(SYS_sendto, socket, bytes, ask(socket, n), flags, nullptr, 0);
}
ssize_t call_recv(int socket, void* bytes, size_t n, int flags) {
    return syscall(SYS_recvfrom, socket, bytes, ask(socket, n), flags, nullptr, nullptr);
}
ssize_t call_recv_chk(int socket, void* bytes, size_t n, size_t, int flags) {
    return call_recv(socket, bytes, n, flags);
}
int call_connect(int socket, const void* to, socklen_t size) {
    ask(socket, 0);
    return int(syscall(SYS_connect, socket, to, size));
}
int call_accept(int socket, void* from, socklen_t* size) {
    ask(socket, 0);
    return int(syscall(SYS_accept, socket, from, size));
}
int call_fsync(int file) {
    if (on_file_call) on_file_call();
    if (refused == "fsync") return errno = EINVAL, -1;
    return int(syscall(SYS_fsync, file));
}
int call_flock(int file, int how) {
    if (refused == "flock") return errno = ENOSYS, -1;
    return int(syscall(SYS_flock, file, how));
}
int call_rename(const char* from, const char* to) {
    if (on_file_call) on_file_call();
    if (refuses_rename(from)) return errno = EACCES, -1;
    return int(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int call_renameat2(int at, const char* from, int in, const char* to, unsigned flags) {
    if (on_entry_call) on_entry_call();
    if (refuses_rename(from)) return errno = EACCES, -1;
    if (cannot_exchange && flags != 0) return errno = EINVAL, -1;
    return int(syscall(SYS_renameat2, at, from, in, to, flags));
}
int call_symlink(const char* target, const char* name) {
    if (on_entry_call) on_entry_call();
    if (refused == "symlink") return errno = EPERM, -1;
    return int(syscall(SYS_symlinkat, target, AT_FDCWD, name));
}
ssize_t call_pread(int file, void* bytes, size_t n, off_t offset) {
    if (const int error = read_error ? read_error() : 0) return errno = error, -1;
    return syscall(SYS_pread64, file, bytes, n, offset);
}
int call_poll(pollfd* files, nfds_t n, int ms) {
    if (n == 0 && on_wait) return on_wait(), 0;
    const timespec time{ms / 1000, ms % 1000 * 1'000'000};
    return int(syscall(SYS_ppoll, files, n, ms < 0 ? nullptr : &time, nullptr, 0));
}
int call_look_up(const char* host, const char* port, const void* wanted, void** found) {
    if (on_look_up) on_look_up();
    static const auto libc = decltype(&call_look_up)(dlsym(RTLD_NEXT, "getaddrinfo"));
    return libc(host, port, wanted, found);
}
int call_unlinkat(int folder, const char* name, int flags) {
    if (on_entry_call) on_entry_call();
    return int(syscall(SYS_unlinkat, folder, name, flags));
}
}

#endif

}  // namespace convoy
