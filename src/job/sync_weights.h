// sync_weights.h — whether all ranks hold the same values, and one rank's values for all.
#pragma once

#include <optional>

#include "net/communicator.h"
#include "src/model/params.h"

namespace convoy {

// All collective, blocking. Whether all ranks hold the same bits. Only a checksum travels.
bool equal_on_all_ranks(std::span<const float> values, Communicator& communicator);
// `n` floats of the device's memory become rank 0's; the same n on every rank.
void broadcast_from_rank0(float* values, size_t n, Backend& backend, Communicator& communicator);

struct Difference {
    std::vector<int> ranks;  // whose values differed from those of `root`
    int root;                // the lowest of the most ranks with the same values
    std::string tensor;      // the first that did: "conv1.weight", "state 0 of conv1.weight"
};
// Weights and optimizer state (Optimizer::state) become those that most ranks hold, bit for bit;
// of as many, those of the lowest rank. Where all have them already, a checksum travels, no more.
std::optional<Difference> take_majority(Params& params, const std::vector<float*>& state,
                                        Backend& backend, Communicator& communicator);

}  // namespace convoy
