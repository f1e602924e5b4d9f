// random_batch.h — a batch of random pixels and labels, to time steps without input pipeline.
#pragma once

#include "data/loader.h"
#include "kernels/backend.h"

namespace convoy {

// The images `part` of a global batch of `global` ones: always the same for the same seed. The
// pixels are the backend's, for as long as it lives.
Batch random_batch(Backend& backend, Range part, int64_t global, int size, int classes,
                   uint64_t seed);

}  // namespace convoy
