// pack.h — the decoded images of a batch in one block of bytes, for a device that resizes them.
//
// Of each image the block holds what resizing reads: its pixels and two tables of weights
// (src/base/picture.h). A mirrored image has its columns in reverse order. The block is no larger
// than the finished floats would be (or 64 KB an image, where that is more): an image for which
// there is no room is resized before it is packed, which gives the same pixels.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "data/resize.h"

namespace convoy {

// Bytes of a block that holds `images` images of size×size, whatever they are made from.
size_t packed_block_bytes(int64_t images, int size);

// Hands out the bytes of a block in such a way that there is room for every image, resized.
class PackedRoom {
 public:
    PackedRoom(int64_t images, int size);
    // Where the next image may begin; nothing if the images after it then had no room.
    std::optional<size_t> take(size_t bytes);
    size_t used() const { return used_; }

 private:
    size_t capacity_, least_, used_ = 0;
    int64_t waiting_;  // images that have no room yet
};

// Packs one image after the other, and keeps its memory. For one thread at a time.
class Packer {
 public:
    // Looks at an image, which must stay until write(); the bytes that it needs.
    size_t look(ImageView from, const Resizing& how);
    // Resizes that image; the bytes that the result needs: few enough for any block.
    size_t resize();
    // Writes the image to block + at.
    Picture write(uint8_t* block, size_t at) const;

 private:
    ImageView part_{};  // what is read of the image
    Resizing how_{};
    Taps columns_, rows_;
    int column_taps_ = 0, row_taps_ = 0;

    ImageView whole_{};
    Resizer resizer_;
    std::vector<float> floats_;
    Image small_;  // resized here
};

}  // namespace convoy
