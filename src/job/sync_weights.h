// sync_weights.h — rank 0's values to every rank, and whether that is needed.
#pragma once

#include "net/communicator.h"
#include "src/model/params.h"

namespace convoy {

// Both block, and every rank must call them. `n` floats of the device's memory, the same on every
// rank.
//
// Whether all ranks hold the same bits: only a checksum travels.
bool equal_on_all_ranks(const float* values, size_t n, Backend& backend,
                        Communicator& communicator);
// values = rank 0's.
void take_from_rank0(float* values, size_t n, Backend& backend, Communicator& communicator);

}  // namespace convoy
