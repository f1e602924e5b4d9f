// decoded_cache.h — a source whose images are decoded once and kept in memory.
#pragma once

#include <atomic>
#include <memory>

#include "data/sources/source.h"

namespace convoy {

using Room = std::shared_ptr<std::atomic<int64_t>>;  // free bytes, shared by several sources

// The samples of `source`. When a sample is first read, its pixels are kept (as binary PPM or PGM,
// which decodes fastest) if there is `room`. Whole images are kept, because each epoch crops other
// parts. No image is ever replaced: an epoch reads every image once, so all are equally useful. An
// image that does not decode is returned unchanged.
SourcePtr keep_decoded(SourcePtr source, int channels, Room room);

// Estimates the bytes of all images as pixels, from the headers of a few dozen images.
int64_t decoded_bytes(const Source& source, int channels);

}  // namespace convoy
