// memory.cpp — the emulator's device memory, which only kernels and copies can reach.
//
//   cudaMalloc gives out addresses here       kernels and copies use the same place here
//   ├────────── kSpan, never readable ──────────┼────────── kSpan, readable where allocated ──┤
//
// Launches and copies add kSpan to the device pointers in their arguments. If the host dereferences
// a pointer of cudaMalloc, the processor raises SIGSEGV. The same happens to a kernel that leaves
// its memory: a forbidden page follows every block, which ends at most 255 bytes before that page.
// explain() then says what happened, and the process ends by SIGSEGV.
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

// Memory belongs to the process, as in CUDA: every backend and thread uses this one.
class Memory {
 public:
    Memory() {
        void* region =
            mmap(nullptr, 2 * kSpan, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
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
            madvise(begin + kSpan, bytes, MADV_DONTNEED);
            mprotect(begin + kSpan, bytes, PROT_NONE);
        } else {
            std::free(memory);
        }
        blocks_.erase(found);
        return cudaSuccess;
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
