#include "kernels/cpu/memory.h"

#include <sys/mman.h>

#include <cstring>

#include "src/base/check.h"

namespace convoy {

Memory::Memory(size_t elems) : size_(elems) {
    constexpr size_t kHugePage = size_t(2) << 20;
    const size_t bytes = (elems * sizeof(float) + 63) / 64 * 64;
    if (bytes == 0) return;
    const bool huge = bytes >= kHugePage;
    void* p = nullptr;
    if (posix_memalign(&p, huge ? kHugePage : 64, bytes) != 0)
        fail("cannot get ", bytes, " bytes of memory from the system");
    data_.reset(static_cast<float*>(p));
#ifdef MADV_HUGEPAGE
    if (huge) madvise(p, bytes, MADV_HUGEPAGE);  // may be refused: that costs speed alone
#endif
    std::memset(p, 0, bytes);
}

}  // namespace convoy
