// tune.cpp — see tune.h.
#include "src/plan/tune.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/base/check.h"
#include "src/base/text.h"
#include "src/train/pieces.h"

namespace convoy {

using nlohmann::json;

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
    std::vector<int> parts = {1};  // powers of two, and all
    while (parts.back() * 2 < cores) parts.push_back(parts.back() * 2);
    if (cores > 1) parts.push_back(cores);
    for (const int threads : parts)
        if (threads > 1) add("", 1, threads, {{"device", "cpu"}});
    for (const int ranks : parts)
        if (ranks > 1)
            for (const char* shm : {"off", "auto"})
                add(*shm == 'a' ? ", shared memory" : "", ranks, std::max(cores / ranks, 1),
                    {{"device", "cpu"}, {"shm", shm}});
    for (const int replicas : parts)
        if (replicas > 1)
            add(cat(", ", replicas, " replicas"), 1, cores,
                {{"device", "cpu"},
                 {"threads", cat(replicas, "x", std::max(cores / replicas, 1))}});
    for (const char* pieces : {"2", "4"})
        add(cat(", ", pieces, " pieces"), 1, cores, {{"device", "cpu"}, {"accumulate", pieces}});
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
        {"ring, no factors", 1, {{"factors", "off"}}},
        {"averages every 8 steps", 1, {{"sync", "average:8"}}, false},
        {"server", 1, {{"sync", "server"}}},
        {"server, asynchronous", 1, {{"sync", "async"}}, false},
        {cat("pipeline of ", world), 1, {{"sync", cat("pipeline:", world)}}},
    };
    if (world > 2 && world % 2 == 0)
        setups.push_back({cat(world / 2, " pipelines of 2"), 1, {{"sync", "pipeline:2"}}});
    return setups;
}

bool is_cut_as_asked(const Setup& setup, int64_t share, int bn_group) {
    for (const auto& [name, value] : setup.options)
        if (name == "accumulate" || (name == "threads" && value.find('x') != value.npos))
            if (const int n = std::stoi(value); share <= (n - 1) * piece_images(share, n, bn_group))
                return false;
    return true;
}

bool is_tuned(const std::string& option) {
    for (const char* name : {"threads", "decode-threads", "device", "accumulate", "wire", "factors",
                             "fragments", "sync", "shm"})
        if (option == name) return true;
    return false;
}

const Tried* race(std::vector<Tried>& tried,
                  const std::function<void(Tried&, double seconds)>& measure) {
    std::vector<Tried*> left;
    for (Tried& one : tried) left.push_back(&one);
    for (double seconds = 1;; seconds = std::min(3 * seconds, 9.0)) {
        for (Tried* one : left) measure(*one, seconds);
        std::erase_if(left, [](const Tried* one) {
            return !one->setup.is_exact || !one->speed.fault.empty();
        });
        std::ranges::stable_sort(left, std::greater(),
                                 [](const Tried* one) { return one->speed.images_per_second; });
        if (left.size() < 2 || (left.size() <= 3 && seconds > 1))
            return left.empty() ? nullptr : left[0];
        left.resize(std::max<size_t>((left.size() + 2) / 3, 2));
    }
}

TuneRecords::TuneRecords(std::string path) : path_(std::move(path)) {
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) {
        const json one = json::parse(line, nullptr, /*allow_exceptions=*/false);
        if (!one.is_object() || !one.contains("key") || !one["key"].is_string()) continue;
        const auto number = [&](const char* name) {
            return one.contains(name) && one[name].is_number() ? one[name].get<double>() : 0;
        };
        const Speed speed{number("seconds"),
                          number("images_per_second"),
                          number("net_wait"),
                          number("net_busy"),
                          number("cores"),
                          number("memory_mb"),
                          ""};
        if (speed.images_per_second > 0) speeds_[one["key"]] = speed;
    }
}

const Speed* TuneRecords::find(const std::string& key) const {
    const auto at = speeds_.find(key);
    return at == speeds_.end() ? nullptr : &at->second;
}

void TuneRecords::add(const std::string& key, const Speed& speed) {
    speeds_[key] = speed;
    std::ofstream file(path_, std::ios::app);
    file << json{{"key", key},
                 {"seconds", speed.seconds},
                 {"images_per_second", speed.images_per_second},
                 {"net_wait", speed.net_wait},
                 {"net_busy", speed.net_busy},
                 {"cores", speed.cores},
                 {"memory_mb", speed.memory_megabytes}}
         << "\n";
    if (!file.flush()) fail("cannot write ", path_, ": ", std::strerror(errno));
}

}  // namespace convoy
