// check_data.h — `trainer check`: decodes every image once and reports the bad ones.
#pragma once

#include <cstdint>
#include <cstdio>

#include "data/source.h"

namespace convoy {

// Reads and decodes all of `set` with `threads` threads and prints to `out`: each bad file with
// the cause, images and bad ones per class, the range of sizes, and files with the same bytes in
// two classes or in both training and validation. Returns the number of bad files.
int64_t check_data(const DataSet& set, int threads, std::FILE* out);

}  // namespace convoy
