// decoded_cache.h — a source whose images are decoded once and kept in memory.
#pragma once

#include <atomic>
#include <memory>

#include "data/source.h"

namespace convoy {

using Room = std::shared_ptr<std::atomic<int64_t>>;  // bytes that are left, for several sources

// The samples of `source`, which are kept as pixels (binary PPM or PGM, the decoder's shortest way)
// when they are first read, as long as there is `room`. Whole images, because each epoch crops
// others of their pixels. What is kept stays: an epoch reads every image once, in another order
// each time, so any part of the set serves as well as another. An image that does not decode is
// handed out as it is.
std::shared_ptr<const Source> keep_decoded(std::shared_ptr<const Source> source, int channels,
                                           Room room);

// About how many bytes all images take as pixels, by the headers of a few dozen.
int64_t decoded_bytes(const Source& source, int channels);

}  // namespace convoy
