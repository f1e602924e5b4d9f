// jpeg.h — decodes JPEGs by libjpeg-turbo, and is strict about missing data.
#pragma once

#include <csetjmp>
#include <cstdio>  // jpeglib.h needs FILE

#include <jpeglib.h>

#include "data/images/decode.h"

namespace convoy {

// Inks as Adobe stores them, inverted: 255 is no ink. rgb = k − k·ink/255, rounded as Pillow does.
void cmyk_to_rgb(const uint8_t* cmyk, int W, uint8_t* rgb);

// One decompressor, used for one image after the other.
class JpegReader {
 public:
    JpegReader();
    ~JpegReader() { jpeg_destroy_decompress(&info_); }

    // Reads the header; `bytes` must stay until read(). Throws Error naming `name`.
    void open(std::span<const uint8_t> bytes, const std::string& name);
    int H() const { return int(info_.image_height); }
    int W() const { return int(info_.image_width); }
    // Whether libjpeg holds the whole image in memory: 2 bytes per sample.
    bool is_held_whole() { return jpeg_has_multiple_scans(&info_); }
    // Decodes `crop` of the opened image as RGB or grey (image.C): the same pixels as in the whole
    // image. CMYK becomes RGB as in Pillow. Throws Error. Call open() before the next read().
    void read(Crop crop, Image& image);

 private:
    // Leaves libjpeg, also from its callbacks.
    [[noreturn]] void give_up(const char* what, const char* why = "");

    jpeg_decompress_struct info_{};
    jpeg_error_mgr errors_{};
    jpeg_progress_mgr progress_{};
    std::jmp_buf escape_;
    char reason_[JMSG_LENGTH_MAX + 16];
    std::string name_;
    std::vector<uint8_t> line_;  // one row as libjpeg gives it
};

}  // namespace convoy
