// sync_weights.cpp — see sync_weights.h.
#include "src/job/sync_weights.h"

#include <algorithm>

namespace convoy {

// The values where the network can read and write them: in place, or as a copy in `copy`.
static std::span<float> on_host(float* values, size_t n, Backend& backend,
                                std::vector<float>& copy) {
    backend.synchronize();
    if (backend.host_visible()) return {values, n};
    copy.resize(n);
    backend.download(copy.data(), values, n * sizeof(float));
    return copy;
}

bool equal_on_all_ranks(float* values, size_t n, Backend& backend, Communicator& communicator) {
    std::vector<float> copy;
    return equal_on_all_ranks(on_host(values, n, backend, copy), communicator);
}

bool equal_on_all_ranks(std::span<const float> values, Communicator& communicator) {
    const uint64_t sum = checksum(values);
    const auto sums = communicator.allgather(std::as_bytes(std::span(&sum, 1)));
    return std::all_of(sums.begin(), sums.end(), [&](const auto& one) { return one == sums[0]; });
}

void broadcast_from_rank0(float* values, size_t n, Backend& backend, Communicator& communicator) {
    std::vector<float> copy;
    const std::span<float> floats = on_host(values, n, backend, copy);
    communicator.broadcast(std::as_writable_bytes(floats));
    if (!copy.empty()) backend.upload(values, copy.data(), n * sizeof(float));
}

}  // namespace convoy
