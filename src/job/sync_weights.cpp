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
    struct Part {  // of an arena: what is held here
        size_t arena, begin;
        float* device;
        std::span<float> host = {};
        std::vector<float> copy = {};
    };
    std::vector<Part> parts;
    std::vector<uint64_t> mine;
    for (size_t i = 0; i <= state.size(); ++i) {
        const size_t size = i == 0 ? params.weights_size : params.state_size;
        for (const Params::Range& range :
             params.is_whole ? std::vector{Params::Range{0, size}} : params.owned) {
            if (range.end > size) continue;
            Part& part = parts.emplace_back(
                Part{i, range.begin, (i == 0 ? params.weights : state[i - 1]) + range.begin});
            part.host = on_host(part.device, range.end - range.begin, backend, part.copy);
            mine.push_back(checksum(part.host));
        }
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
    for (const Part& part : parts)
        for (const Param* param : params.all()) {
            const size_t n = param->shape.elems(), at = param->offset - part.begin;
            if (param->offset < part.begin || at + n > part.host.size()) continue;
            tensors.push_back(checksum(part.host.subspan(at, n)));
            names.push_back(part.arena == 0 ? param->name
                                            : cat("state ", part.arena - 1, " of ", param->name));
        }
    const auto sums = gather_sums(tensors, communicator);
    for (size_t t = names.size(); t-- > 0;)
        if (sums[size_t(found.ranks[0])][t] != sums[size_t(found.root)][t]) found.tensor = names[t];
    for (const Part& part : parts) {
        communicator.broadcast(std::as_writable_bytes(part.host), found.root);
        if (!part.copy.empty())
            backend.upload(part.device, part.copy.data(), part.copy.size() * sizeof(float));
    }
    return found;
}

}  // namespace convoy
