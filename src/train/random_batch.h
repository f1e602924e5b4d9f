// random_batch.h — a batch of random pixels and labels, to time steps without the input pipeline.
#pragma once

#include "data/loader.h"
#include "kernels/backend.h"

namespace convoy {

// A rank's part, by its share, of a batch of `global` images. The backend owns the pixels.
Batch random_batch(Backend& backend, int64_t global, std::span<const double> shares, int rank,
                   InputSize size, int classes, uint64_t seed);

}  // namespace convoy
