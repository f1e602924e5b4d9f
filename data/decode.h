// decode.h — encoded bytes → RGB pixels.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace convoy {

struct Image {  // RGB, 8 bits, rows without padding
    int H = 0, W = 0;
    std::vector<uint8_t> pixels;  // H·W·3
};

// A part of an image: rows [top, top+H), columns [left, left+W).
struct Crop {
    int top, left, H, W;
    bool operator==(const Crop&) const = default;
};

class JpegReader;

// Decodes JPEG, PNG, WebP, BMP, TIFF and PNM into RGB, whatever the bytes hold (grey, palette,
// CMYK, 16 bits, a PNG called .jpg). Alpha is dropped. EXIF orientation is ignored, as torchvision
// does. Throws Error naming the image and the cause: 0 bytes, not an image, truncated, damaged,
// more than 178 megapixels (Pillow's limit for decompression bombs). The size that a header claims
// is checked before anything is allocated for it.
//
// Keeps its memory from image to image. For one thread at a time.
class Decoder {
 public:
    Decoder();
    ~Decoder();

    // Reads the header. `bytes` must stay until read(); `name` is for messages.
    void open(std::span<const uint8_t> bytes, const std::string& name);
    int H() const { return H_; }
    int W() const { return W_; }
    // Decodes the whole opened image, or only `crop` of it: the same pixels, and for a JPEG less
    // work. Damage outside of the crop may go unnoticed then; a missing end does not.
    void read(Image& image) { read({0, 0, H_, W_}, image); }
    void read(Crop crop, Image& image);

 private:
    std::unique_ptr<JpegReader> jpeg_;  // made for the first JPEG
    bool is_jpeg_ = false;
    std::span<const uint8_t> bytes_;
    std::string name_;
    int H_ = 0, W_ = 0;
    std::vector<uint8_t> essential_;  // the chunks of a PNG that hold its pixels
};

}  // namespace convoy
