// decode.h — encoded bytes → RGB or grey pixels.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

struct Image {  // RGB or grey, 8 bits, rows without padding
    int H = 0, W = 0;
    std::vector<uint8_t> pixels;  // H·W·C
    int C = 3;
};

// Encodes an RGB or grey image as a JPEG of quality 90 (jpeg.cpp).
std::vector<uint8_t> encoded(const Image& image);

// "jpg", "png", "webp", "bmp", "tif", "pgm" or "ppm", by the signature; "" for all others.
std::string image_extension(std::span<const uint8_t> bytes);
// Whether files with this extension (".jpeg", in lower case) are images.
bool is_image_extension(std::string_view extension);

// A part of an image: rows [top, top+H), columns [left, left+W).
struct Crop {
    int top, left, H, W;
    bool operator==(const Crop&) const = default;
};

// Converts n pixels as Pillow does: (19595·R + 38470·G + 7471·B) / 2^16, rounded. grey may be rgb.
void rgb_to_grey(const uint8_t* rgb, size_t n, uint8_t* grey);

// The limit for pixels per image: photos of 200 megapixels are below it.
constexpr int64_t kMaxPixels = 1 << 28;

class Bitmap;
class JpegReader;

// Decodes JPEG, PNG, WebP, BMP, TIFF and PNM into RGB or grey. The bytes may hold grey, a palette,
// CMYK, 16 bits, or a PNG called .jpg. RGB becomes grey as in Pillow's convert("L"). Alpha is
// dropped, as in Pillow. EXIF orientation is ignored, as in torchvision. Throws Error with the
// image and the cause: 0 bytes, not an image, truncated, damaged, too many pixels. The size that a
// header claims is checked before anything is allocated for it.
//
// Keeps its memory from image to image. For one thread at a time.
class Decoder {
 public:
    // channels: 3 returns RGB images, 1 grey ones.
    explicit Decoder(int channels = 3);
    ~Decoder();

    // Reads the header. `bytes` must stay until read(); `name` is for messages.
    void open(std::span<const uint8_t> bytes, const std::string& name);
    int H() const { return H_; }
    int W() const { return W_; }
    // Decodes the opened image, or only `crop`: the same pixels, and for a JPEG less work. With a
    // crop, damage elsewhere may go unnoticed, but a missing end never does.
    void read(Image& image) { read({0, 0, H_, W_}, image); }
    void read(Crop crop, Image& image);

 private:
    void copy_crop(std::span<const uint8_t> pixels, Crop crop, Image& image) const;

    const int channels_;
    std::unique_ptr<JpegReader> jpeg_;  // made for the first JPEG
    std::unique_ptr<Bitmap> bitmap_;    // any other image
    std::string name_;
    int H_ = 0, W_ = 0;
    std::unique_ptr<uint8_t[]> decoded_;  // the pixels of bitmap_
    size_t decoded_bytes_ = 0;
};

}  // namespace convoy
