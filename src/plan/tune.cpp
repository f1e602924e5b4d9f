// tune.cpp — see tune.h.
#include "src/plan/tune.h"

#include <algorithm>

#include "src/base/text.h"

namespace convoy {

std::string Setup::text() const {
    std::string text = ranks > 1 ? cat(ranks, " ranks:") : "";
    for (const auto& [name, value] : options)
        text += cat(text.empty() ? "--" : " --", name, " ", value);
    return text;
}

std::vector<Setup> local_setups(int cores, int gpus) {
    std::vector<Setup> setups;
    const auto add = [&](int ranks, std::map<std::string, std::string> options) {
        if (gpus > 0) options.try_emplace("device", "cpu");
        setups.push_back({std::move(options), ranks});
    };
    const auto each_of = [&](int parts) { return cat(std::max(cores / parts, 1)); };
    std::vector<int> parts;  // all, and powers of two
    if (cores > 1) parts.push_back(cores);
    for (int part = 2; part < cores; part *= 2) parts.push_back(part);

    add(1, {{"threads", "1"}, {"decode-threads", "1"}});
    for (const int threads : parts) add(1, {{"threads", cat(threads)}});
    for (const int ranks : parts) add(ranks, {{"threads", each_of(ranks)}});
    for (const int replicas : parts) add(1, {{"threads", cat(replicas, "x", each_of(replicas))}});
    for (const char* micro_batches : {"2", "4"})
        add(1, {{"threads", cat(cores)}, {"accumulate", micro_batches}});
    if (cores > 1) add(2, {{"threads", each_of(2)}, {"sync", "pipeline:2"}});
    for (int ranks = 1; ranks <= gpus; ranks *= 2) add(ranks, {{"device", "cuda"}});
    if (gpus > 1) add(2, {{"device", "cuda"}, {"sync", "pipeline:2"}});
    return setups;
}

std::vector<Setup> join_setups(int world, const Setup& local) {
    std::vector<Setup> setups = {{{{"sync", "ring"}}},
                                 {{{"wire", "bf16"}}, 1, /*is_exact=*/false},
                                 {{{"sync", "average:8"}}, 1, /*is_exact=*/false},
                                 {{{"sync", "server"}}},
                                 {{{"sync", "async"}}, 1, /*is_exact=*/false},
                                 {{{"sync", cat("pipeline:", world)}}}};
    if (world > 2 && world % 2 == 0) setups.push_back({{{"sync", "pipeline:2"}}});
    for (Setup& one : setups) {
        const bool is_cut = one.text().find("pipeline") != std::string::npos;
        for (const auto& [name, value] : local.options)  // a pipeline has its own micro-batches
            if (!is_cut || (name != "accumulate" && value.find('x') == value.npos))
                one.options.try_emplace(name, value);
    }
    return setups;
}

int race(std::vector<Setup>& setups, const MeasureSetup& measure) {
    constexpr double kClose = 0.9;
    constexpr size_t kFinalists = 3;
    double best = 0;
    std::vector<Setup*> left;
    for (Setup& one : setups) {
        measure(one, 1, best);
        if (!one.is_exact || !one.speed.fault.empty()) continue;
        best = std::max(best, one.speed.images_per_second);
        left.push_back(&one);
    }
    const auto speed_of = [](const Setup* one) { return one->speed.images_per_second; };
    std::erase_if(left, [&](const Setup* one) { return speed_of(one) < kClose * best; });
    std::ranges::stable_sort(left, std::greater(), speed_of);
    left.resize(std::min(left.size(), kFinalists));
    if (left.size() > 1) {
        for (Setup* one : left) measure(*one, 3, 0);
        std::erase_if(left, [](const Setup* one) { return !one->speed.fault.empty(); });
        std::ranges::stable_sort(left, std::greater(), speed_of);
    }
    return left.empty() ? -1 : int(left[0] - setups.data());
}

}  // namespace convoy
