// sync_weights.cpp — see sync_weights.h.
#include "src/job/sync_weights.h"

#include <algorithm>
#include <cstring>

#include "src/base/text.h"

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

// Every rank's numbers, by rank; as many on each.
static std::vector<std::vector<uint64_t>> gather_sums(const std::vector<uint64_t>& mine,
                                                      Communicator& communicator) {
    std::vector<std::vector<uint64_t>> all;
    for (const auto& bytes : communicator.allgather(std::as_bytes(std::span(mine)))) {
        ENSURE(bytes.size() == mine.size() * sizeof(uint64_t), bytes.size(), " bytes");
        std::memcpy(all.emplace_back(mine.size()).data(), bytes.data(), bytes.size());
    }
    return all;
}

std::optional<Difference> take_majority(Params& params, const std::vector<float*>& state,
                                        Backend& backend, Communicator& communicator) {
    struct Arena {
        float* device;
        std::span<float> host;
        std::vector<float> copy = {};
    };
    std::vector<Arena> arenas;
    std::vector<uint64_t> mine;
    for (size_t i = 0; i <= state.size(); ++i) {
        Arena& arena = arenas.emplace_back(Arena{i == 0 ? params.weights : state[i - 1], {}});
        arena.host = on_host(arena.device, i == 0 ? params.weights_size : params.trained_size,
                             backend, arena.copy);
        mine.push_back(checksum(arena.host));
    }
    const auto all = gather_sums(mine, communicator);
    if (std::ranges::count(all, all[0]) == std::ssize(all)) return std::nullopt;

    const auto root = std::ranges::max_element(
        all, {}, [&](const auto& sums) { return std::ranges::count(all, sums); });
    Difference found{{}, int(root - all.begin()), "padding"};
    for (size_t rank = 0; rank < all.size(); ++rank)
        if (all[rank] != *root) found.ranks.push_back(int(rank));
    std::vector<uint64_t> tensors;
    std::vector<std::string> names;
    for (size_t i = 0; i < arenas.size(); ++i)
        for (const Param* param : params.all()) {
            const size_t n = param->shape.elems();
            if (param->offset + n > arenas[i].host.size()) continue;
            tensors.push_back(checksum(arenas[i].host.subspan(param->offset, n)));
            names.push_back(i == 0 ? param->name : cat("state ", i - 1, " of ", param->name));
        }
    const auto sums = gather_sums(tensors, communicator);
    for (size_t t = names.size(); t-- > 0;)
        if (sums[size_t(found.ranks[0])][t] != sums[size_t(found.root)][t]) found.tensor = names[t];
    for (const Arena& arena : arenas) {
        communicator.broadcast(std::as_writable_bytes(arena.host), found.root);
        if (!arena.copy.empty())
            backend.upload(arena.device, arena.copy.data(), arena.copy.size() * sizeof(float));
    }
    return found;
}

}  // namespace convoy
