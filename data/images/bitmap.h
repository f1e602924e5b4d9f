// bitmap.h — images of packed samples, which are decoded as a whole: PNG, BMP and TIFF.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "src/base/check.h"

namespace convoy {

// An opened image. All functions throw Error, which names the image and the cause.
class Bitmap {
 public:
    // `bytes` must stay until read().
    Bitmap(std::span<const uint8_t> bytes, const std::string& name) : bytes_(bytes), name_(name) {}
    virtual ~Bitmap() = default;
    int64_t W = 0, H = 0;
    int64_t C = 3;       // of the pixels: 1 for grey, 3 for RGB
    int64_t memory = 0;  // bytes that read() takes beside its result
    // Writes H·W·C bytes, as Pillow decodes them; of 16 bits a sample the upper eight. A byte of
    // `out` is written when the file has data for it, so a false claim of a size takes no memory.
    virtual void read(uint8_t* out) = 0;
    // The pixels, if they are in the file as they are wanted; else nothing.
    virtual std::span<const uint8_t> raw() const { return {}; }

 protected:
    [[noreturn]] void ends_early() const { fail(name_, ": truncated: the image data ends early"); }

    const std::span<const uint8_t> bytes_;
    const std::string name_;
};

// Read the header, and refuse what read() would decode in another way than Pillow.
std::unique_ptr<Bitmap> open_png(std::span<const uint8_t> bytes, const std::string& name);
std::unique_ptr<Bitmap> open_bmp(std::span<const uint8_t> bytes, const std::string& name);
std::unique_ptr<Bitmap> open_tiff(std::span<const uint8_t> bytes, const std::string& name);

// How the pixels of a row are packed.
struct Samples {
    int bits = 8;                      // of a sample: 1, 2, 4, 8 or 16
    int count = 1;                     // per pixel
    int used = 1;                      // the first of them: 1 grey or an index, 3 RGB, 4 CMYK
    bool low_first = false;            // of 16 bits
    bool inverted = false;             // 0 is white
    bool multiplied = false;           // the colours, by the alpha that follows
    const uint8_t* palette = nullptr;  // RGB for each index
    int largest = 0;                   // of 16 bits: the largest sample so far

    size_t row_bytes(int64_t W) const { return (size_t(W) * size_t(bits * count) + 7) / 8; }
    // Writes W pixels, of one byte (grey) or of three, `step` bytes apart.
    void unpack(const uint8_t* row, int64_t W, uint8_t* out, int64_t step);
    // Refuses 16 bits if all samples are small, as those of 8 to 12 bits are: they would be black.
    void check_largest(const std::string& name) const;
};

}  // namespace convoy
