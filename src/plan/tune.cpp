// tune.cpp — see tune.h.
#include "src/plan/tune.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/base/text.h"

namespace convoy {

static std::string setup_name(int ranks, int threads) {
    return cat(counted(ranks, "rank"), " x ", counted(threads, "thread"));
}

std::vector<Setup> local_setups(int cores, int gpus) {
    std::vector<Setup> setups = {{"1 core", 1, {{"threads", "1"}, {"decode-threads", "1"}}}};
    const auto add = [&](const std::string& more, int ranks, int threads,
                         std::map<std::string, std::string> options) {
        options.try_emplace("threads", cat(threads));
        if (gpus == 0) options["device"] = "cpu";
        setups.push_back({setup_name(ranks, threads) + more, ranks, std::move(options)});
    };
    if (gpus > 0) setups[0].options["device"] = "cpu";
    std::vector<int> parts;  // all, and powers of two
    if (cores > 1) parts.push_back(cores);
    for (int part = 2; part < cores; part *= 2) parts.push_back(part);
    for (const int threads : parts) add("", 1, threads, {{"device", "cpu"}});
    for (const int ranks : parts) add("", ranks, std::max(cores / ranks, 1), {{"device", "cpu"}});
    for (const int replicas : parts)
        add(cat(", ", replicas, " replicas"), 1, cores,
            {{"device", "cpu"}, {"threads", cat(replicas, "x", std::max(cores / replicas, 1))}});
    for (const char* parts_of_batch : {"2", "4"})
        add(cat(", ", parts_of_batch, " micro-batches"), 1, cores,
            {{"device", "cpu"}, {"accumulate", parts_of_batch}});
    if (cores > 1) add(", pipeline", 2, cores / 2, {{"device", "cpu"}, {"sync", "pipeline:2"}});
    for (int ranks = 1; ranks <= gpus; ranks *= 2)
        setups.push_back({counted(ranks, "GPU"), ranks, {{"device", "cuda"}}});
    if (gpus > 1)
        setups.push_back({"2 GPUs, pipeline", 2, {{"device", "cuda"}, {"sync", "pipeline:2"}}});
    return setups;
}

std::vector<Setup> join_setups(int world) {
    std::vector<Setup> setups = {
        {"ring", 1, {}},
        {"ring, bf16 on the wire", 1, {{"wire", "bf16"}}, false},
        {"local SGD, 8 steps", 1, {{"sync", "average:8"}}, false},
        {"server", 1, {{"sync", "server"}}},
        {"server, asynchronous", 1, {{"sync", "async"}}, false},
        {cat("pipeline of ", world), 1, {{"sync", cat("pipeline:", world)}}},
    };
    if (world > 2 && world % 2 == 0)
        setups.push_back({cat(world / 2, " pipelines of 2"), 1, {{"sync", "pipeline:2"}}});
    return setups;
}

bool is_tuned(const std::string& option) {
    for (const char* name :
         {"threads", "decode-threads", "device", "accumulate", "wire", "factors", "sync", "shm"})
        if (option == name) return true;
    return false;
}

const Tried* race(std::vector<Tried>& tried, const MeasureSetup& measure) {
    constexpr double kClose = 0.9;
    constexpr size_t kFinalists = 3;
    double best = 0;
    std::vector<Tried*> left;
    for (Tried& one : tried) {
        measure(one, 1, best);
        if (!one.setup.is_exact || !one.speed.fault.empty()) continue;
        best = std::max(best, one.speed.images_per_second);
        left.push_back(&one);
    }
    const auto sort = [&] {
        std::ranges::stable_sort(left, std::greater(),
                                 [](const Tried* one) { return one->speed.images_per_second; });
    };
    sort();
    std::erase_if(left,
                  [&](const Tried* one) { return one->speed.images_per_second < kClose * best; });
    left.resize(std::min(left.size(), kFinalists));
    if (left.size() > 1) {
        for (Tried* one : left) measure(*one, 3, 0);
        std::erase_if(left, [](const Tried* one) { return !one->speed.fault.empty(); });
        sort();
    }
    return left.empty() ? nullptr : left[0];
}

}  // namespace convoy
