// crc32c.cpp — by the processor's instruction where the compiler may use it (8 GB/s), else by a
// table of Boost.
#include "data/crc32c.h"

#include <cstring>
#ifdef __SSE4_2__
#include <nmmintrin.h>
#else
#include <boost/crc.hpp>
#endif

namespace convoy {

uint32_t crc32c(std::span<const uint8_t> bytes, uint32_t before) {
#ifdef __SSE4_2__
    uint64_t crc = ~before;
    size_t i = 0;
    for (; i + 8 <= bytes.size(); i += 8) {
        uint64_t word;
        std::memcpy(&word, bytes.data() + i, 8);
        crc = _mm_crc32_u64(crc, word);
    }
    uint32_t last = uint32_t(crc);  // the instruction leaves the upper half 0
    for (; i < bytes.size(); ++i) last = _mm_crc32_u8(last, bytes[i]);
    return ~last;
#else
    // The remainder of what came before is the start value, its bits in reverse.
    uint32_t start = 0;
    for (int bit = 0; bit < 32; ++bit) start |= (~before >> bit & 1) << (31 - bit);
    boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc(start);
    crc.process_bytes(bytes.data(), bytes.size());
    return crc.checksum();
#endif
}

}  // namespace convoy
