// sync_weights.h — whether all ranks hold the same values, and rank 0's values for all.
#pragma once

#include "net/communicator.h"
#include "src/model/params.h"

namespace convoy {

// All collective, blocking. Whether all ranks hold the same bits. Only a checksum travels.
bool equal_on_all_ranks(std::span<const float> values, Communicator& communicator);
// Likewise, of `n` floats of the device's memory; the same n on every rank.
bool equal_on_all_ranks(float* values, size_t n, Backend& backend, Communicator& communicator);
// values = rank 0's.
void broadcast_from_rank0(float* values, size_t n, Backend& backend, Communicator& communicator);

}  // namespace convoy
