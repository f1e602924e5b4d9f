// check_data.h — `trainer check`: decodes every image once and reports the bad ones.
#pragma once

#include <cstdint>
#include <cstdio>

#include "data/sources/dataset.h"

namespace convoy {

// Decodes all of `set` with `threads` threads, and prints a report to `out`, as text or as one JSON
// object: each bad image with the cause, images and bad images per class, how uneven the classes
// are, formats, the range of sizes, and images with the same bytes in two classes or in training
// and validation. Returns the number of bad images, with the samples that an index leaves out.
int64_t check_data(const DataSet& set, int threads, bool as_json, std::FILE* out, Log& log);

}  // namespace convoy
