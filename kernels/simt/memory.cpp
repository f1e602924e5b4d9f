// memory.cpp — the emulator's device memory, which only kernels and copies can reach.
//
//   cudaMalloc gives out addresses here       kernels and copies use the same place here
//   ├────────── kSpan, never readable ──────────┼────────── kSpan, readable where allocated ──┤
//
// Launches and copies add kSpan to the device pointers in their arguments. If the host dereferences
// a pointer of cudaMalloc, the processor raises SIGSEGV. The same happens to a kernel that leaves
// its memory: a forbidden page follows every block, which ends at most 255 bytes before that page.
// explain() then says what happened, and the process ends by SIGSEGV.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "kernels/simt/worker.h"

namespace convoy::simt {

namespace {

constexpr size_t kSpan = size_t(64) << 30;  // of address space, not of memory
constexpr size_t kPage = 4096, kAlign = 256;
constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

struct sigaction before_us;
char* first_address = nullptr;

bool is_host_side(const void* p) {
    const char* at = static_cast<const char*>(p);
    return first_address && at >= first_address && at < first_address + kSpan;
}

void explain(int, siginfo_t* fault, void*) {
    sigaction(SIGSEGV, &before_us, nullptr);  // the access is repeated on return, and ends there
    const char* at = static_cast<const char*>(fault->si_addr);
    std::string text;
    if (is_host_side(at))
        text = fmt::format(
            "simt: the host touched {}, an address of device memory, which it cannot read or "
            "write on a GPU; copy with Backend::download or upload first\n",
            fault->si_addr);
    else if (first_address && is_host_side(at - kSpan))
        text = fmt::format("simt: {} touched {}, which is outside of all device memory\n",
                           place_text(), fault->si_addr);
    if (write(STDERR_FILENO, text.data(), text.size()) < 0) return;
}

struct Block {
    size_t bytes;
    bool on_device;
    int file = -1;  // that holds the pages, if other processes may open them
};
using Blocks = std::map<const char*, Block>;

// Memory belongs to the process, as in CUDA: every backend and thread uses these.
std::mutex mutex;
Blocks blocks;
char* next_address;

size_t pages_of(size_t bytes) {  // and one that stays forbidden
    return (bytes + kPage - 1) / kPage * kPage + kPage;
}
std::pair<char*, size_t> pages_of(const Blocks::value_type& block) {
    const auto begin = reinterpret_cast<uintptr_t>(block.first) / kPage * kPage;
    return {reinterpret_cast<char*>(begin), pages_of(block.second.bytes)};
}
// Addresses are given out again as late as possible: a pointer to released memory then points
// nowhere. Null where no gap is large enough.
char* find_room(size_t bytes) {
    if (!first_address) {
        void* region = mmap(nullptr, 2 * kSpan, PROT_NONE, kPrivate, -1, 0);
        if (region == MAP_FAILED)
            fail("simt: no address space for device memory: ", std::strerror(errno));
        next_address = first_address = static_cast<char*>(region);
    }
    for (char* at : {next_address, first_address}) {
        for (auto block = blocks.lower_bound(at);
             block != blocks.end() && is_host_side(block->first); ++block) {
            const auto [begin, taken] = pages_of(*block);
            if (size_t(begin - at) >= bytes) break;
            at = begin + taken;
        }
        if (at + bytes <= first_address + kSpan) return at;
    }
    return nullptr;
}
// A block that find_room() has found: only its bytes may be touched.
char* add_block(char* pages, size_t offset, size_t bytes) {
    char* begin = pages + offset;
    next_address = pages + pages_of(bytes);
    forbid(pages + kSpan, pages_of(bytes));
    allow(begin + kSpan, bytes);
    blocks[begin] = {bytes, true};
    return begin;
}

// Again at each allocation, because a test framework installs its own handler per test.
void install_handler() {
    struct sigaction now;
    sigaction(SIGSEGV, nullptr, &now);
    if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == explain) return;
    before_us = now;
    now.sa_sigaction = explain;
    now.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &now, nullptr);
}

cudaError_t release(void* memory, bool on_device) {
    if (!memory) return cudaSuccess;
    std::lock_guard lock(mutex);
    const auto found = blocks.find(static_cast<char*>(memory));
    if (found == blocks.end() || found->second.on_device != on_device)
        return failed(cudaErrorInvalidValue);
    if (on_device) {
        const auto [begin, bytes] = pages_of(*found);
        mmap(begin + kSpan, bytes, PROT_NONE, kPrivate | MAP_FIXED, -1, 0);
        if (found->second.file >= 0) close(found->second.file);
    } else {
        std::free(memory);
    }
    blocks.erase(found);
    return cudaSuccess;
}

// Whether [p, p + bytes] lies in one block of this kind.
bool contains(const void* p, size_t bytes, bool on_device) {
    std::lock_guard lock(mutex);
    const char* at = static_cast<const char*>(p);
    auto after = blocks.upper_bound(at);
    if (after == blocks.begin()) return false;
    const auto& [begin, block] = *std::prev(after);
    return block.on_device == on_device && at + bytes <= begin + block.bytes;
}

struct SharedBlock {
    pid_t process;
    int file;
    size_t offset, bytes;  // in the file
};

}  // namespace

cudaError_t allocate(void** to, size_t bytes, bool on_device) {
    std::lock_guard lock(mutex);
    *to = nullptr;
    if (on_device) {
        install_handler();
        const size_t pages = pages_of(bytes), used = (bytes + kAlign - 1) / kAlign * kAlign;
        char* room = find_room(pages);
        if (room && mprotect(room + kSpan, pages - kPage, PROT_READ | PROT_WRITE) == 0)
            *to = add_block(room, pages - kPage - used, bytes);
    } else if (posix_memalign(to, kAlign, bytes) == 0) {
        // The exact size, so that the address sanitizer sees its end.
        blocks[static_cast<char*>(*to)] = {bytes, false};
    }
    if (!*to) return failed(cudaErrorMemoryAllocation);
    std::memset(kernel_address(*to), 0xFF, bytes);  // NaN
    return cudaSuccess;
}
cudaError_t cudaFree(void* block) { return release(block, true); }
cudaError_t cudaFreeHost(void* block) { return release(block, false); }

// The pages move to a file, which another process opens as /proc/PROCESS/fd/FILE.
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
    std::lock_guard lock(mutex);
    const auto found = blocks.find(static_cast<char*>(memory));
    if (found == blocks.end() || !found->second.on_device) return failed(cudaErrorInvalidValue);
    const auto [begin, bytes] = pages_of(*found);
    int& file = found->second.file;
    SharedBlock as{getpid(), file, size_t(found->first - begin), found->second.bytes};
    if (file < 0) {
        as.file = memfd_create("simt", MFD_CLOEXEC);
        if (ftruncate(as.file, off_t(bytes - kPage)) != 0 ||
            pwrite(as.file, found->first + kSpan, as.bytes, off_t(as.offset)) < ssize_t(as.bytes) ||
            mmap(begin + kSpan, bytes - kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                 as.file, 0) == MAP_FAILED)
            return close(as.file), failed(cudaErrorInvalidValue);
        file = as.file;
    }
    std::memcpy(handle->reserved, &as, sizeof as);
    return cudaSuccess;
}
// Only to read: a kernel that writes to another process's memory is a mistake.
cudaError_t cudaIpcOpenMemHandle(void** to, cudaIpcMemHandle_t handle, unsigned) {
    SharedBlock it;
    std::memcpy(&it, handle.reserved, sizeof it);
    const int file = open(cat("/proc/", it.process, "/fd/", it.file).c_str(), O_CLOEXEC);
    std::lock_guard lock(mutex);
    const size_t pages = pages_of(it.bytes);
    char* room = find_room(pages);
    const bool opened =
        file >= 0 && room &&
        mmap(room + kSpan, pages - kPage, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED;
    if (file >= 0) close(file);
    *to = opened ? add_block(room, it.offset, it.bytes) : nullptr;
    return opened ? cudaSuccess : failed(cudaErrorInvalidValue);
}

bool is_device_memory(const void* p, size_t bytes) { return contains(p, bytes, true); }
bool is_pinned(const void* p, size_t bytes) { return contains(p, bytes, false); }

void* kernel_address(const void* p) {
    return const_cast<char*>(static_cast<const char*>(p)) + (is_host_side(p) ? kSpan : 0);
}

// clang 14 leaves in the padding of a structure what was there, which may look like a pointer.
static constexpr bool kPaddingIsClear = __has_builtin(__builtin_clear_padding);

void Launch::move_words(int number, void* argument, size_t bytes, bool is_pointer) const {
    for (char *at = static_cast<char*>(argument), *end = at + bytes; at < end; at += sizeof at) {
        void* p;
        std::memcpy(&p, at, sizeof p);
        if (is_host_side(p) ? !is_device_memory(p) : is_pointer && p) {
            if (!is_pointer && !kPaddingIsClear) continue;  // no pointer, perhaps
            fail("kernel ", name_, ": argument ", number, " does not point to device memory");
        }
        p = kernel_address(p);
        std::memcpy(at, &p, sizeof p);
    }
}

}  // namespace convoy::simt
