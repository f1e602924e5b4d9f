// sanitizer.h — what the address sanitizer must be told: which bytes nobody may touch.
#pragma once

#include <cstddef>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace convoy::simt {

#ifdef __SANITIZE_ADDRESS__
inline void allow(const void* p, size_t bytes) { __asan_unpoison_memory_region(p, bytes); }
inline void forbid(const void* p, size_t bytes) { __asan_poison_memory_region(p, bytes); }
#else
inline void allow(const void*, size_t) {}
inline void forbid(const void*, size_t) {}
#endif

}  // namespace convoy::simt
