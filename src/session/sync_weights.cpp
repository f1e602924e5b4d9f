#include "src/session/sync_weights.h"

#include <algorithm>

namespace convoy {

struct Held {  // a part of an arena, as this rank has it
    size_t arena, begin;
    std::span<float> host;  // the arena itself, or `copy` if the host cannot read it
    std::vector<float> copy = {};
};

// The name of the first tensor that differs between ranks `root` and `other`. Collective.
static std::string first_difference(const std::vector<Held>& parts, Params& params, int root,
                                    int other, Communicator& communicator) {
    std::vector<uint64_t> mine;
    std::vector<std::string> names;
    for (const Held& part : parts)
        for (const Param* param : params.all()) {
            const size_t n = param->shape.elems(), at = param->offset - part.begin;
            if (param->offset < part.begin || at + n > part.host.size()) continue;
            mine.push_back(checksum(part.host.subspan(at, n)));
            names.push_back(part.arena == 0 ? param->name
                                            : cat("state ", part.arena - 1, " of ", param->name));
        }
    const auto all = gather_lists(communicator, mine);
    const auto &first = all[size_t(root)], &second = all[size_t(other)];
    const auto t = size_t(std::ranges::mismatch(first, second).in1 - first.begin());
    return t < names.size() ? names[t] : "padding";
}

Difference take_from(int root, const std::vector<bool>& same, Params& params,
                     const std::vector<std::span<float>>& arenas, Backend& backend,
                     Communicator& communicator) {
    std::vector<Held> parts;
    std::vector<uint64_t> mine;
    backend.synchronize();
    for (size_t i = 0; i < arenas.size(); ++i)
        for (const Params::Range& range :
             params.is_whole ? std::vector{Params::Range{0, arenas[i].size()}} : params.owned) {
            if (range.end > arenas[i].size()) continue;
            Held& part =
                parts.emplace_back(i, range.begin, arenas[i].subspan(range.begin, range.size()));
            if (!backend.host_visible()) {
                part.copy.resize(range.size());
                backend.download(part.copy.data(), part.host.data(), part.host.size_bytes());
                part.host = part.copy;
            }
            mine.push_back(checksum(part.host));
        }
    const auto all = gather_lists(communicator, mine);

    Difference found;
    const std::vector<uint64_t>& right = all[size_t(root)];
    for (size_t rank = 0; rank < all.size(); ++rank)
        if (same[rank] && all[rank] != right) found.ranks.push_back(int(rank));
    if (!found.ranks.empty())
        found.tensor = first_difference(parts, params, root, found.ranks[0], communicator);
    std::vector<std::pair<float*, std::vector<float>>> lacked;  // by this rank
    for (size_t p = 0; p < parts.size(); ++p) {
        const auto has_it = [&](const auto& sums) { return sums[p] == right[p]; };
        if (std::ranges::all_of(all, has_it)) continue;
        const Held& part = parts[p];
        std::vector<float> got;  // even if this rank already has the values
        if (communicator.rank() != root) got.resize(part.host.size());
        const std::span<float> values = got.empty() ? part.host : got;
        communicator.broadcast(std::as_writable_bytes(values), root);
        if (mine[p] != right[p])
            lacked.emplace_back(arenas[part.arena].data() + part.begin, std::move(got));
    }
    for (const auto& [place, values] : lacked)
        backend.upload(place, values.data(), values.size() * sizeof(float));
    return found;
}

}  // namespace convoy
