// sync_weights.h — compares weights and state across ranks, and copies one rank's to all ranks.
#pragma once

#include "net/ring/communicator.h"
#include "src/model/params.h"

namespace convoy {

// How the ranks differed from rank `root`, bit for bit.
struct Difference {
    std::vector<int> ranks;  // ranks that should have held the root's values but did not
    std::string tensor;      // the first that differed: "conv1.weight", "state 0 of …"
};
// Compares weights and optimizer state (Optimizer::arenas) with those of rank `root`, and gives
// each rank the values that it lacks. same[r]: rank r should hold the root's values. Arenas are
// written after everything has come, so the state stays valid if a rank is lost meanwhile. Their
// sizes are the same on every rank. Collective, blocking. If all ranks hold the same values, only
// checksums are sent. Throws RingBroken.
Difference take_from(int root, const std::vector<bool>& same, Params& params,
                     const std::vector<std::span<float>>& arenas, Backend& backend,
                     Communicator& communicator);

}  // namespace convoy
