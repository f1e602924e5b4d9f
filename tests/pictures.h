// pictures.h — pictures made by a formula or decoded, and parts of them.
#pragma once

#include "data/decode.h"
#include "data/resize.h"

namespace convoy {

// The same formula as picture() in tools/make_goldens.py.
inline Image picture(int H, int W) {
    Image image{H, W, {}};
    for (int h = 0; h < H; ++h)
        for (int w = 0; w < W; ++w)
            for (int c = 0; c < 3; ++c)
                image.pixels.push_back(
                    uint8_t((h * 5 + w * 3 + c * 60 + h * w * (c + 1) % 41 * 4) % 256));
    return image;
}

inline Image decoded(std::span<const uint8_t> bytes, const std::string& name = "picture") {
    Decoder decoder;
    Image image;
    decoder.open(bytes, name);
    decoder.read(image);
    return image;
}

inline ImageView view(const Image& image, Crop crop) {
    const size_t row_bytes = size_t(image.W) * 3;
    return {image.pixels.data() + size_t(crop.top) * row_bytes + size_t(crop.left) * 3, crop.H,
            crop.W, row_bytes};
}

}  // namespace convoy
