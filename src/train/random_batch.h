// random_batch.h — a batch of random pixels and labels, to time steps without input pipeline.
#pragma once

#include "data/loader.h"

namespace convoy {

// The images `part` of a global batch of `global` ones: always the same for the same seed. `slot`
// has room for part.size()·size·size·3 floats and must outlive the batch.
Batch random_batch(Range part, int64_t global, int size, int classes, uint64_t seed, float* slot);

}  // namespace convoy
