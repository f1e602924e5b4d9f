#include "kernels/cpu/memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "src/base/text.h"

namespace convoy {

// Large blocks are fresh pages from mmap: zero, and allocated when a thread first touches them.
Memory::Memory(size_t elems) : size_(elems) {
    constexpr size_t kMapFrom = size_t(1) << 20, kHugePage = size_t(2) << 20;
    const size_t bytes = (elems * sizeof(float) + 63) / 64 * 64;
    if (bytes == 0) return;
    const bool map = bytes >= kMapFrom;
    void* p = map ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                  : std::aligned_alloc(64, bytes);
    if (!p || p == MAP_FAILED)
        fail("out of memory: cannot allocate ", bytes_text(double(bytes)),
             "; use a smaller --batch or --size, or --accumulate N");
    data_ = {static_cast<float*>(p), ReleaseMemory{map ? bytes : 0}};
    if (!map) std::memset(p, 0, bytes);
#ifdef MADV_HUGEPAGE
    if (bytes >= kHugePage) madvise(p, bytes, MADV_HUGEPAGE);  // only for speed: may fail
#endif
}

void ReleaseMemory::operator()(float* p) const {
    if (mapped_bytes)
        munmap(p, mapped_bytes);
    else
        std::free(p);
}

}  // namespace convoy
