// golden.h — bytes in base64, and the files in tests/golden_images.json.gz (make_goldens.py).
#pragma once

#include <openssl/evp.h>
#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "src/base/check.h"

namespace convoy {

inline std::vector<uint8_t> from_base64(std::string_view text) {
    std::vector<uint8_t> bytes(text.size() / 4 * 3);
    EVP_DecodeBlock(bytes.data(), reinterpret_cast<const uint8_t*>(text.data()), int(text.size()));
    bytes.resize(bytes.size() - size_t(std::ranges::count(text, '=')));
    return bytes;
}

}  // namespace convoy

namespace golden {

// A file, and what Pillow makes of it as RGB.
struct Kind {
    std::string name;
    std::vector<uint8_t> file;
    int H, W;
    uint64_t hash;                // of the pixels, by hash_bytes()
    std::vector<uint8_t> pixels;  // of JPEGs only
};

inline const std::vector<Kind>& kinds() {
    static const std::vector<Kind> all = [] {
        std::string text(1 << 20, '\0');
        const gzFile in = gzopen("tests/golden_images.json.gz", "rb");
        if (!in) convoy::fail("there is no tests/golden_images.json.gz here");
        text.resize(size_t(gzread(in, text.data(), unsigned(text.size()))));
        gzclose(in);
        std::vector<Kind> found;
        for (const auto& one : nlohmann::json::parse(text))
            found.push_back({one["name"], convoy::from_base64(one["file"].get<std::string>()),
                             one["H"], one["W"], one["hash"],
                             convoy::from_base64(one["pixels"].get<std::string>())});
        return found;
    }();
    return all;
}
inline const Kind& kind(std::string_view name) {
    const auto found = std::ranges::find(kinds(), name, &Kind::name);
    if (found == kinds().end()) convoy::fail("no golden file ", name);
    return *found;
}

}  // namespace golden
