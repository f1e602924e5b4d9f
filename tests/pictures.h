// pictures.h — pictures from a formula or from the decoder, and parts of them.
#pragma once

#include "data/decode.h"
#include "data/resize.h"

namespace convoy {

// The same formula as picture() in tests/make_goldens.py.
inline Image picture(int H, int W) {
    Image image{H, W, {}};
    for (int h = 0; h < H; ++h)
        for (int w = 0; w < W; ++w)
            for (int c = 0; c < 3; ++c)
                image.pixels.push_back(
                    uint8_t((h * 5 + w * 3 + c * 60 + h * w * (c + 1) % 41 * 4) % 256));
    return image;
}

// Converts RGB to grey like the decoder (rgb_to_grey).
inline Image grey(const Image& image) {
    Image grey{image.H, image.W, {}, 1};
    grey.pixels.resize(size_t(image.H) * size_t(image.W));
    rgb_to_grey(image.pixels.data(), grey.pixels.size(), grey.pixels.data());
    return grey;
}

inline Image decoded(std::span<const uint8_t> bytes, const std::string& name = "picture",
                     int channels = 3) {
    Decoder decoder(channels);
    Image image;
    decoder.open(bytes, name);
    decoder.read(image);
    return image;
}

inline ImageView view(const Image& image, Crop crop) {
    const size_t C = size_t(image.C), row_bytes = size_t(image.W) * C;
    return {image.pixels.data() + size_t(crop.top) * row_bytes + size_t(crop.left) * C, crop.H,
            crop.W, row_bytes, image.C};
}

}  // namespace convoy
