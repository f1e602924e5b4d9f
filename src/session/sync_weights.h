// sync_weights.h — compares weights and state across ranks, and copies one rank's to all ranks.
#pragma once

#include "net/ring/communicator.h"
#include "src/model/params.h"

namespace convoy {

// The number of floats of each arena.
std::vector<size_t> sizes_of(const std::vector<std::span<float>>& arenas);

// How the ranks differ from rank `root`, bit for bit.
struct Difference {
    std::vector<int> ranks;  // ranks that should hold the root's values but do not
    std::string tensor;      // the first that differs: "conv1.weight", "state 0 of …"
    struct Part {
        size_t arena, begin;
        std::vector<float> values;
    };
    std::vector<Part> theirs;  // the root's values that this rank lacks
};
// Compares weights and optimizer state (Optimizer::arenas) with those of rank `root`. same[r]: rank
// r should hold the root's values. Each rank gets the values that it lacks in `theirs`. Nothing is
// written to `arenas`, so the state stays valid if a rank is lost meanwhile. `sizes` of the arenas
// are the same on every rank; a rank whose model has another layout passes no arenas. Collective,
// blocking. If all ranks hold the same values, only checksums are sent. Throws RingBroken.
Difference compare_with(int root, const std::vector<bool>& same, Params& params,
                        const std::vector<std::span<float>>& arenas,
                        const std::vector<size_t>& sizes, Backend& backend,
                        Communicator& communicator);
// Writes `theirs` to the arenas.
void take(const Difference& found, const std::vector<std::span<float>>& arenas, Backend& backend);

}  // namespace convoy
