// bytes.h — numbers and signatures in bytes that come from outside.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "src/base/check.h"

namespace convoy {

// The bytes of a vector or span of numbers, and of a text.
inline std::string_view as_text(const auto& numbers) {
    const auto bytes = std::as_bytes(std::span(numbers));
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
inline std::span<const uint8_t> text_bytes(std::string_view text) {
    return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// Whether `text` begins at offset `at`.
inline bool has_text(std::span<const uint8_t> bytes, size_t at, std::string_view text) {
    return at <= bytes.size() && as_text(bytes.subspan(at)).starts_with(text);
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

// Little-endian numbers and texts, one after the other. Throws Error where the bytes end before.
struct ByteReader {
    std::span<const uint8_t> rest;

    std::span<const uint8_t> take(uint64_t n) {
        if (n > rest.size()) fail("ends early");
        const auto part = rest.first(n);
        rest = rest.subspan(n);
        return part;
    }
    template <class T>
    T number() {
        T value;
        std::memcpy(&value, take(sizeof value).data(), sizeof value);
        return value;
    }
    std::string text(uint64_t n) { return std::string(as_text(take(n))); }
};

}  // namespace convoy
