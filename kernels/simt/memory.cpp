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

struct SharedBlock {
    pid_t process = 0;
    int file = -1;
    size_t offset = 0, bytes = 0;  // in the file
};

// Memory belongs to the process, as in CUDA: every backend and thread uses this one.
class Memory {
 public:
    Memory() {
        void* region = mmap(nullptr, 2 * kSpan, PROT_NONE, kPrivate, -1, 0);
        if (region == MAP_FAILED)
            fail("simt: no address space for device memory: ", std::strerror(errno));
        next_ = first_address = static_cast<char*>(region);
    }

    void* alloc_device(size_t bytes) {
        std::lock_guard lock(mutex_);
        install_handler();
        const size_t pages = pages_of(bytes), used = (bytes + kAlign - 1) / kAlign * kAlign;
        char* pages_begin = find_room(pages);
        if (!pages_begin || mprotect(pages_begin + kSpan, pages - kPage, PROT_READ | PROT_WRITE))
            return nullptr;
        char* begin = pages_begin + (pages - kPage - used);
        next_ = pages_begin + pages;
        forbid(pages_begin + kSpan, pages);
        allow(begin + kSpan, bytes);
        std::memset(begin + kSpan, 0xFF, bytes);  // NaN
        blocks_[begin] = {bytes, true};
        return begin;
    }
    void* alloc_pinned(size_t bytes) {
        // The exact size, so that the address sanitizer sees its end.
        void* memory = nullptr;
        if (posix_memalign(&memory, kAlign, bytes) != 0) return nullptr;
        std::memset(memory, 0xFF, bytes);
        std::lock_guard lock(mutex_);
        blocks_[static_cast<char*>(memory)] = {bytes, false};
        return memory;
    }
    cudaError_t release(void* memory, bool on_device) {
        if (!memory) return cudaSuccess;
        std::lock_guard lock(mutex_);
        const auto found = blocks_.find(static_cast<char*>(memory));
        if (found == blocks_.end() || found->second.on_device != on_device)
            return failed(cudaErrorInvalidValue);
        if (on_device) {
            const auto [begin, bytes] = pages_of(*found);
            mmap(begin + kSpan, bytes, PROT_NONE, kPrivate | MAP_FIXED, -1, 0);
            if (found->second.file >= 0) close(found->second.file);
        } else {
            std::free(memory);
        }
        blocks_.erase(found);
        return cudaSuccess;
    }
    // The pages move to a file, which another process opens as /proc/PROCESS/fd/FILE.
    bool share(void* memory, SharedBlock& as) {
        std::lock_guard lock(mutex_);
        const auto found = blocks_.find(static_cast<char*>(memory));
        if (found == blocks_.end() || !found->second.on_device) return false;
        const auto [begin, bytes] = pages_of(*found);
        int& file = found->second.file;
        as = {getpid(), file, size_t(found->first - begin), found->second.bytes};
        if (file >= 0) return true;
        as.file = memfd_create("simt", MFD_CLOEXEC);
        if (ftruncate(as.file, off_t(bytes - kPage)) != 0 ||
            pwrite(as.file, found->first + kSpan, as.bytes, off_t(as.offset)) < ssize_t(as.bytes) ||
            mmap(begin + kSpan, bytes - kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                 as.file, 0) == MAP_FAILED)
            return close(as.file), false;
        return file = as.file, true;
    }
    // Only to read: a kernel that writes to another process's memory is a mistake.
    void* open_shared(const SharedBlock& it) {
        const std::string path = cat("/proc/", it.process, "/fd/", it.file);
        const int file = open(path.c_str(), O_CLOEXEC);
        const size_t bytes = pages_of(it.bytes);
        std::lock_guard lock(mutex_);
        char* begin = find_room(bytes);
        const bool opened = file >= 0 && begin &&
                            mmap(begin + kSpan, bytes - kPage, PROT_READ, MAP_SHARED | MAP_FIXED,
                                 file, 0) != MAP_FAILED;
        if (file >= 0) close(file);
        if (!opened) return nullptr;
        forbid(begin + kSpan, bytes);
        allow(begin + it.offset + kSpan, it.bytes);
        next_ = begin + bytes;
        blocks_[begin + it.offset] = {it.bytes, true};
        return begin + it.offset;
    }
    // Whether [p, p + bytes] lies in one block of this kind.
    bool contains(const void* p, size_t bytes, bool on_device) {
        std::lock_guard lock(mutex_);
        const char* at = static_cast<const char*>(p);
        auto after = blocks_.upper_bound(at);
        if (after == blocks_.begin()) return false;
        const auto& [begin, block] = *std::prev(after);
        return block.on_device == on_device && at + bytes <= begin + block.bytes;
    }

 private:
    struct Block {
        size_t bytes;
        bool on_device;
        int file = -1;  // that holds the pages, if other processes may open them
    };
    using Blocks = std::map<const char*, Block>;

    static size_t pages_of(size_t bytes) {  // and one that stays forbidden
        return (bytes + kPage - 1) / kPage * kPage + kPage;
    }
    static std::pair<char*, size_t> pages_of(const Blocks::value_type& block) {
        const auto begin = reinterpret_cast<uintptr_t>(block.first) / kPage * kPage;
        return {reinterpret_cast<char*>(begin), pages_of(block.second.bytes)};
    }
    // Addresses are given out again as late as possible: a pointer to released memory then
    // points nowhere. Null where no gap is large enough.
    char* find_room(size_t bytes) const {
        for (char* at : {next_, first_address}) {
            for (auto block = blocks_.lower_bound(at);
                 block != blocks_.end() && is_host_side(block->first); ++block) {
                const auto [begin, taken] = pages_of(*block);
                if (size_t(begin - at) >= bytes) break;
                at = begin + taken;
            }
            if (at + bytes <= first_address + kSpan) return at;
        }
        return nullptr;
    }
    // Again at each allocation, because a test framework installs its own handler per test.
    static void install_handler() {
        struct sigaction now;
        sigaction(SIGSEGV, nullptr, &now);
        if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == explain) return;
        before_us = now;
        now.sa_sigaction = explain;
        now.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigaction(SIGSEGV, &now, nullptr);
    }

    std::mutex mutex_;
    Blocks blocks_;
    char* next_;
};
Memory& memory() {
    static Memory all;
    return all;
}

}  // namespace

cudaError_t allocate(void** to, size_t bytes, bool on_device) {
    *to = on_device ? memory().alloc_device(bytes) : memory().alloc_pinned(bytes);
    return *to ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* block) { return memory().release(block, true); }
cudaError_t cudaFreeHost(void* block) { return memory().release(block, false); }
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* block) {
    SharedBlock shared;
    if (!memory().share(block, shared)) return failed(cudaErrorInvalidValue);
    std::memcpy(handle->reserved, &shared, sizeof shared);
    return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** to, cudaIpcMemHandle_t handle, unsigned) {
    SharedBlock shared;
    std::memcpy(&shared, handle.reserved, sizeof shared);
    *to = memory().open_shared(shared);
    return *to ? cudaSuccess : failed(cudaErrorInvalidValue);
}

bool is_device_memory(const void* p, size_t bytes) { return memory().contains(p, bytes, true); }
bool is_pinned(const void* p, size_t bytes) { return memory().contains(p, bytes, false); }

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
