// golden.h — decodes the hexadecimal digits of golden_images.h.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace convoy {

inline std::vector<uint8_t> from_hex(std::string_view digits) {
    const auto value = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
    std::vector<uint8_t> bytes;
    for (size_t i = 0; i + 1 < digits.size(); i += 2)
        bytes.push_back(uint8_t(value(digits[i]) << 4 | value(digits[i + 1])));
    return bytes;
}

}  // namespace convoy
