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

// How the ranks differ from rank `root`, bit for bit.
struct Difference {
    std::vector<int> ranks;  // that should hold the root's values, and do not
    std::string tensor;      // the first that differs there: "conv1.weight", "state 0 of …"
    struct Part {
        size_t arena, begin;
        std::vector<float> values;
    };
    std::vector<Part> theirs;  // the root's values, where this rank holds others
};
// Compares weights and optimizer state (Optimizer::arenas) with those of rank `root`. same: ranks
// that should hold the root's values, by rank. All ranks get the values that they lack, in
// `theirs`: nothing is written to `arenas`, so a rank that is lost meanwhile spoils no state.
// `sizes` of the arenas are the same on every rank. A rank whose model has another layout gives no
// arenas. Collective, blocking; where all hold the same values, only checksums travel. Throws
// RingBroken.
Difference compare_with(int root, const std::vector<bool>& same, Params& params,
                        const std::vector<std::span<float>>& arenas,
                        const std::vector<size_t>& sizes, Backend& backend,
                        Communicator& communicator);
// Writes `theirs` to the arenas.
void take(const Difference& found, const std::vector<std::span<float>>& arenas, Backend& backend);

}  // namespace convoy
