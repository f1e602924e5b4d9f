// golden.h — decodes the texts of golden_images.h and golden_shards.h.
#pragma once

#include <openssl/evp.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

namespace convoy {

inline std::vector<uint8_t> from_base64(std::string_view text) {
    std::vector<uint8_t> bytes(text.size() / 4 * 3);
    EVP_DecodeBlock(bytes.data(), reinterpret_cast<const uint8_t*>(text.data()), int(text.size()));
    bytes.resize(bytes.size() - size_t(std::ranges::count(text, '=')));
    return bytes;
}

}  // namespace convoy
