// pictures.h — pictures from a formula or from the decoder, and parts of them.
#pragma once

#include "data/images/decode.h"
#include "data/images/resize.h"

namespace convoy {

// The same formula as picture() in tests/goldens.py.
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

inline Image part_of(const Image& image, Crop crop) {
    Image part{crop.H, crop.W, {}, image.C};
    for (int h = crop.top; h < crop.top + crop.H; ++h) {
        const auto row = image.pixels.begin() + (h * image.W + crop.left) * image.C;
        part.pixels.insert(part.pixels.end(), row, row + crop.W * image.C);
    }
    return part;
}

}  // namespace convoy
