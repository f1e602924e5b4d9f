// crc32c.h — CRC-32C (Castagnoli): the checksum of TFRecords, and of every sample of a shard. The
// processor's instruction computes it (8 GB/s) if the compiler may use it, else a table of Boost.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#ifdef __SSE4_2__
#include <nmmintrin.h>
#else
#include <boost/crc.hpp>
#endif

namespace convoy {

inline uint32_t crc32c(std::span<const uint8_t> bytes) {
#ifdef __SSE4_2__
    uint64_t crc = 0xFFFFFFFF;
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
    boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
    crc.process_bytes(bytes.data(), bytes.size());
    return crc.checksum();
#endif
}

// TFRecord's form: a checksum of bytes that contain their own checksum would be weak.
inline uint32_t masked_crc32c(std::span<const uint8_t> bytes) {
    const uint32_t crc = crc32c(bytes);
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

}  // namespace convoy
