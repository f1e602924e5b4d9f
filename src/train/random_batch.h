// random_batch.h — a batch of random pixels and labels, to time steps without input pipeline.
#pragma once

#include "data/loader.h"
#include "kernels/backend.h"

namespace convoy {

// Rank's part of a global batch of `global` images, by its share: always the same for the same
// seed. The pixels are the backend's, for as long as it lives.
Batch random_batch(Backend& backend, int64_t global, std::span<const double> shares, int rank,
                   InputSize size, int classes, uint64_t seed);

}  // namespace convoy
