// sync_weights.h — whether all ranks hold the same values, and one rank's values for all.
#pragma once

#include "net/communicator.h"
#include "src/model/params.h"

namespace convoy {

// `n` floats of the device's memory become rank 0's; the same n on every rank. Collective,
// blocking.
void broadcast_from_rank0(float* values, size_t n, Backend& backend, Communicator& communicator);

// Floats of each.
std::vector<size_t> sizes_of(const std::vector<std::span<float>>& arenas);

struct Majority {
    int root = 0;            // the lowest of the most ranks with the same values
    std::vector<int> ranks;  // of those with a vote, whose values differed from those of `root`
    std::string tensor;      // the first that did: "conv1.weight", "state 0 of conv1.weight"
    struct Part {
        size_t arena, begin;
        std::vector<float> values;
    };
    std::vector<Part> theirs;  // of root, where this rank holds others
};
// What most ranks hold of weights and optimizer state, bit for bit (of as many, the lowest rank).
// Only ranks with a vote count; all get the values, in `theirs`: nothing is written to `arenas`
// (Optimizer::arenas), so neither a rank that is lost meanwhile nor a damaged bit spoils them.
// `sizes` of the arenas are the same on every rank; a rank whose model has another form gives no
// arenas, and has no vote. Collective, blocking; where all have the same, only a checksum travels.
// Throws RingBroken.
Majority find_majority(Params& params, const std::vector<std::span<float>>& arenas,
                       const std::vector<size_t>& sizes, const std::vector<bool>& votes,
                       Backend& backend, Communicator& communicator);
// Writes `theirs` to the arenas.
void take(const Majority& found, const std::vector<std::span<float>>& arenas, Backend& backend);

}  // namespace convoy
