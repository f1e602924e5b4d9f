// check_data.h — `trainer check`: decodes every image once and reports the bad ones.
#pragma once

#include <cstdint>
#include <cstdio>

#include "data/dataset.h"

namespace convoy {

// Reads and decodes all of `set` with `threads` threads and prints to `out`: each bad image with
// the cause, images and bad ones per class, how uneven the classes are, formats, the range of
// sizes, and images with the same bytes in two classes or in both training and validation; as text
// or as one JSON object. Returns the number of bad images, with those that shards' indexes leave
// out.
int64_t check_data(const DataSet& set, int threads, int64_t max_pixels, bool as_json,
                   std::FILE* out, Log& log);

}  // namespace convoy
