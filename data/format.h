// format.h — what a stranger's bytes claim to be, read without decoding or allocating.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace convoy {

enum class Format { unknown, jpeg, png, webp, bmp, tiff, pnm };

Format format_of(std::span<const uint8_t> bytes);

struct ImageSize {
    int64_t W = 0, H = 0;
};
// Width and height from the header of any format but JPEG (libjpeg reads that); 0×0 or nonsense
// when it is cut short.
ImageSize size_of(std::span<const uint8_t> bytes, Format format);

// Whether bytes are missing, where the header alone tells: uncompressed BMP, binary PNM.
bool is_cut_short(std::span<const uint8_t> bytes, Format format);

// Copies the chunks of a PNG that make the picture (IHDR, PLTE, IDAT, IEND) into `out`, each with
// its checksum tested. What else travels in a PNG (colour profiles, texts, animation) changes no
// pixel here, but libpng would parse it and print its opinion. Returns the fault, or nullptr.
const char* essential_png(std::span<const uint8_t> bytes, std::vector<uint8_t>& out);

}  // namespace convoy
