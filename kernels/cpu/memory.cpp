#include "kernels/cpu/memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "src/base/check.h"

namespace convoy {

namespace {
constexpr size_t kMapFrom = size_t(1) << 20;  // bytes; below, a page of its own is a waste
constexpr size_t kHugePage = size_t(2) << 20;
}  // namespace

Memory::Memory(size_t elems) : size_(elems) {
    const size_t bytes = (elems * sizeof(float) + 63) / 64 * 64;
    if (bytes >= kMapFrom) {
        void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) fail("cannot get ", bytes >> 20, " MB of memory from the system");
#ifdef MADV_HUGEPAGE
        if (bytes >= kHugePage) madvise(p, bytes, MADV_HUGEPAGE);  // a wish: refusal costs speed
#endif
        data_ = {static_cast<float*>(p), ReleaseMemory{bytes}};  // fresh pages are zero
    } else if (bytes > 0) {
        void* p = std::aligned_alloc(64, bytes);
        if (!p) fail("cannot get ", bytes, " bytes of memory from the system");
        std::memset(p, 0, bytes);
        data_ = {static_cast<float*>(p), ReleaseMemory{}};
    }
}

void ReleaseMemory::operator()(float* p) const {
    if (mapped_bytes)
        munmap(p, mapped_bytes);
    else
        std::free(p);
}

}  // namespace convoy
