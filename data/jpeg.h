// jpeg.h — JPEG decoding by libjpeg-turbo: the fast path, strict about missing data.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/decode.h"

namespace convoy {

// One decompressor, used for one image after the other.
class JpegReader {
 public:
    JpegReader();
    ~JpegReader();

    // Reads the header; `bytes` must stay until read(). Throws Error naming `name`.
    void open(std::span<const uint8_t> bytes, const std::string& name);
    int H() const;
    int W() const;
    // The opened image's `crop` as RGB: the same pixels as in the whole image. CMYK is turned
    // into RGB as Pillow does it. Throws Error; open() must come before the next read().
    void read(Crop crop, Image& image);

    struct State;  // libjpeg's, hidden from our readers

 private:
    std::unique_ptr<State> state_;
    std::string name_;
    std::vector<uint8_t> line_;  // one row as libjpeg gives it
};

}  // namespace convoy
