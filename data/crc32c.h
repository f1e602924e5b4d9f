// crc32c.h — CRC-32C (Castagnoli): TFRecord's checksum, and that of every sample of a shard.
#pragma once

#include <cstdint>
#include <span>

namespace convoy {

// Of `bytes` after those with checksum `before`.
uint32_t crc32c(std::span<const uint8_t> bytes, uint32_t before = 0);

// As TFRecord stores it: a checksum of bytes that hold checksums would be weak.
inline uint32_t masked_crc32c(std::span<const uint8_t> bytes) {
    const uint32_t crc = crc32c(bytes);
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

}  // namespace convoy
