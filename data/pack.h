// pack.h — the decoded images of a batch in one block of bytes, for a device that resizes them.
//
// Of each image the block holds what resizing reads: its pixels and two tables of weights
// (src/base/picture.h). A mirrored image has its columns in reverse order. An image takes no more
// bytes than its finished floats would (or 64 KB, where that is more): one that needs more is
// resized before it is packed, which gives the same pixels.
#pragma once

#include <cstdint>
#include <vector>

#include "data/resize.h"
#include "src/base/input_size.h"
#include "src/base/picture.h"

namespace convoy {

// Bytes that an image to be resized to `size` takes at most, whatever it is made from.
size_t packed_image_bytes(InputSize size);

// Packs one image after the other, and keeps its memory. For one thread at a time.
class Packer {
 public:
    // Prepares an image, which must stay until write(), . Returns the bytes that it
    // needs: at most packed_image_bytes() of the window, and a multiple of four.
    size_t prepare(ImageView from, const Resizing& how);
    // Writes the image to block + at.
    Picture write(uint8_t* block, size_t at) const;

 private:
    ImageView part_{};                     // the pixels that are read
    Picture picture_{};                    // as if it were at 0
    std::vector<int32_t> columns_, rows_;  // the tables
    Taps taps_;
    Resizer resizer_;
    std::vector<float> floats_;
    Image small_;  // an image that was resized before
};

}  // namespace convoy
