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

// An RGB or grey image as a file: ".png", or ".jpg" of that quality.
std::vector<uint8_t> encoded(const Image& image, const char* extension, int quality = 90);

// "jpg", "png", "webp", "bmp", "tif", "pgm" or "ppm": the format of encoded bytes, by their
// signature; "" for all others.
std::string image_extension(std::span<const uint8_t> bytes);
// Whether files with this extension (".jpeg", in lower case) are images.
bool is_image_extension(std::string_view extension);

// A part of an image: rows [top, top+H), columns [left, left+W).
struct Crop {
    int top, left, H, W;
    bool operator==(const Crop&) const = default;
};

// n RGB pixels to grey: (19595·R + 38470·G + 7471·B) / 2^16, rounded: Pillow's. In place too.
void rgb_to_grey(const uint8_t* rgb, size_t n, uint8_t* grey);

// The largest reduction of `crop` that leaves H×W pixels or more.
inline int reduction_to(Crop crop, int H, int W) {
    int reduction = 8;
    while (reduction > 1 && (crop.H < H * reduction || crop.W < W * reduction)) reduction /= 2;
    return reduction;
}

// Pillow warns of a decompression bomb above this many.
constexpr int64_t kMaxPixels = 89'478'485;

class JpegReader;

// Decodes JPEG, PNG, WebP, BMP, TIFF and PNM into RGB or grey, whatever the bytes hold (grey,
// palette, CMYK, 16 bits, a PNG called .jpg). Grey is made of RGB as Pillow's convert("L") does it.
// Alpha is dropped, as Pillow does it. EXIF orientation is ignored, as torchvision does. Throws
// Error naming the image and the cause: 0 bytes, not an image, truncated, damaged, too many pixels.
// The size that a header claims is checked before anything is allocated for it.
//
// Keeps its memory from image to image. For one thread at a time.
class Decoder {
 public:
    // channels: of the images that are read: 3 (RGB) or 1 (grey).
    explicit Decoder(int channels = 3, int64_t max_pixels = kMaxPixels);
    ~Decoder();

    // Reads the header. `bytes` must stay until read(); `name` is for messages.
    void open(std::span<const uint8_t> bytes, const std::string& name);
    int H() const { return H_; }
    int W() const { return W_; }
    // Decodes the whole opened image, or only `crop` of it: the same pixels, and for a JPEG less
    // work. Damage outside of the crop may go unnoticed then; a missing end does not.
    void read(Image& image) { read({0, 0, H_, W_}, image); }
    // reduction: 1, or 2, 4 or 8: a JPEG may then be read at that part of its height and width
    // (image.H, image.W), which is less work. Pixels are means, not Pillow's.
    void read(Crop crop, Image& image, int reduction = 1);

 private:
    void read_raw(Crop crop, Image& image) const;

    const int channels_;
    const int64_t max_pixels_;
    std::unique_ptr<JpegReader> jpeg_;  // made for the first JPEG
    bool is_jpeg_ = false, is_premultiplied_ = false;
    std::span<const uint8_t> raw_;  // pixels of a PPM or PGM as bytes; empty: something else
    std::span<const uint8_t> bytes_;
    std::string name_;
    int H_ = 0, W_ = 0;
    std::vector<uint8_t> prepared_;  // what is decoded where that is not the file as it is
};

}  // namespace convoy
