// decode.h — encoded bytes → RGB pixels, and Pillow's antialiased bilinear resize.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace convoy {

struct Image {  // RGB, 8 bits, rows without padding
    int H = 0, W = 0;
    std::vector<uint8_t> pixels;  // H·W·3
};

// Decodes any format that OpenCV knows into RGB, whatever the bytes hold (grey, palette, CMYK,
// 16 bits, a PNG called .jpg). EXIF orientation is ignored, as torchvision's loader does.
// `image` keeps its memory from call to call. Throws Error naming `name` and the cause: 0 bytes,
// not an image, truncated, more than 178 megapixels (Pillow's limit for decompression bombs).
void decode(std::span<const uint8_t> bytes, const std::string& name, Image& image);

}  // namespace convoy
