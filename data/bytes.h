// bytes.h — numbers and signatures in bytes that come from outside.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace convoy {

// Whether `text` begins at offset `at`.
inline bool has_text(std::span<const uint8_t> bytes, size_t at, std::string_view text) {
    return at + text.size() <= bytes.size() &&
           std::memcmp(bytes.data() + at, text.data(), text.size()) == 0;
}

// `count` bytes from `at`, most significant first. A byte past the end is 0.
inline uint32_t big_endian(std::span<const uint8_t> bytes, size_t at, int count = 4) {
    uint32_t value = 0;
    for (size_t i = at; i < at + size_t(count); ++i)
        value = value << 8 | (i < bytes.size() ? bytes[i] : 0u);
    return value;
}
// The same, least significant first.
inline uint32_t little_endian(std::span<const uint8_t> bytes, size_t at, int count = 4) {
    return __builtin_bswap32(big_endian(bytes, at, count)) >> (32 - 8 * count);
}

}  // namespace convoy
