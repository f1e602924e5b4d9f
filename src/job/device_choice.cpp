// device_choice.cpp — see device_choice.h.
//
// Two checks, since each sees what the other cannot: the count of GPUs is known before any of them
// is touched, but a host id or a launcher may be wrong about who lives where; the UUID of a GPU is
// the same in every container and under every CUDA_VISIBLE_DEVICES.
#include "src/job/device_choice.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/base/check.h"
#include "src/base/text.h"

namespace convoy {

using nlohmann::json;

static std::string count_text(int count, const char* what) {
    return cat(count, " ", what, count == 1 ? "" : "s");
}

LocalPlace local_place(const std::map<std::string, std::string>& launcher,
                       std::span<const Peer> peers, int rank) {
    LocalPlace place;
    for (const char* name : {"LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"}) {
        const auto found = launcher.find(name);
        if (found == launcher.end() || found->second.empty()) continue;
        const std::string& text = found->second;
        if (text.size() > 5 || text.find_first_not_of("0123456789") != std::string::npos)
            fail(name, " cannot be '", text,
                 "': it is this rank's number on its host, from 0; or give --device cuda:INDEX");
        const int number = std::stoi(text);
        if (!place.who.empty() && place.number != number)
            fail("the environment disagrees about this rank's number on its host: ", place.who,
                 " says ", place.number, ", ", name, " says ", number,
                 "; unset one of them or give --device cuda:INDEX");
        if (place.who.empty()) place.number = number, place.who = name;
    }
    if (size_t(rank) >= peers.size()) return place;
    const auto same_host = [&](const Peer& peer) { return peer.host == peers[size_t(rank)].host; };
    place.ranks = int(std::count_if(peers.begin(), peers.end(), same_host));
    if (place.who.empty())
        place.number = int(std::count_if(peers.begin(), peers.begin() + rank, same_host));
    return place;
}

std::string device_for(const std::string& device, const LocalPlace& place, int gpus, bool bound) {
    if (!device.empty() && device != "cuda") return device;
    if (gpus == 0) return device;  // make_backend knows why there is none
    if (bound && gpus == 1) return "cuda:0";
    if (device.empty() && place.ranks > gpus) return "cpu";
    if (place.number >= gpus)
        fail("each rank of a host computes on a GPU of its own: this is rank ", place.number,
             " of its host, counted from 0", place.who.empty() ? "" : cat(" (", place.who, ")"),
             ", and there ", gpus == 1 ? "is " : "are ", count_text(gpus, "GPU"), " for ",
             count_text(std::max(place.ranks, place.number + 1), "rank"),
             "; start fewer, or say --device cuda:INDEX on those that are to share one");
    return cat("cuda:", place.number);
}

std::vector<SharedDevice> shared_devices(std::span<const DeviceClaim> claims) {
    std::map<std::string, std::vector<size_t>> ranks_of;
    for (size_t rank = 0; rank < claims.size(); ++rank)
        if (!claims[rank].identity.empty()) ranks_of[claims[rank].identity].push_back(rank);
    std::vector<SharedDevice> shared;
    for (const auto& [identity, ranks] : ranks_of) {
        if (ranks.size() < 2) continue;
        std::vector<std::string> names;
        bool meant = true;
        for (const size_t rank : ranks) {
            names.push_back(cat("rank ", rank, " (", claims[rank].device, ")"));
            meant = meant && claims[rank].by_number;
        }
        shared.push_back(
            {cat(join_text(names), " compute on one and the same GPU, ", identity), meant});
    }
    return shared;
}

void compare_devices(Communicator& communicator, const DeviceClaim& mine, Log& log) {
    std::vector<DeviceClaim> claims;
    const json text = {mine.device, mine.identity, mine.by_number};
    for (const std::string& one : allgather_text(communicator, text.dump())) {
        const json claim = json::parse(one);
        claims.push_back({claim[0], claim[1], claim[2]});
    }
    for (const SharedDevice& shared : shared_devices(claims)) {
        if (!shared.meant)
            fail(shared.sentence,
                 "; give each its own by --device cuda:INDEX (or say so on all of them, where they "
                 "are to share it)");
        if (communicator.rank() == 0) log.notice(shared.sentence, ", as asked for");
    }
}

void choose_device(Config& config, const CommandLine& line, const Job& job, Log& log) {
    const std::string asked = config.device;
    if (asked.empty() || asked == "cuda") {
        const auto visible = line.launcher.find("CUDA_VISIBLE_DEVICES");
        const bool bound = visible != line.launcher.end() && !visible->second.empty();
        const int gpus = count_gpus();
        const LocalPlace place =
            gpus > 0 ? local_place(line.launcher, job.peers, job.communicator->rank())
                     : LocalPlace{};
        config.device = device_for(asked, place, gpus, bound);
        if (config.device == "cpu")
            log.notice("on the CPU, since this host has ", count_text(place.ranks, "rank"), " and ",
                       count_text(gpus, "GPU"),
                       "; --device cuda:INDEX on each of them shares what there is");
    }
    if (job.communicator->world() == 1) return;
    compare_devices(*job.communicator,
                    {config.device.empty() ? "cpu" : config.device, device_identity(config.device),
                     asked.starts_with("cuda:")},
                    log);
}

ConvMethod parse_conv_method(const std::string& text) {
    return text == "winograd" ? ConvMethod::kWinograd
           : text == "direct" ? ConvMethod::kDirect
                              : ConvMethod::kAuto;
}

Precision parse_precision(const std::string& text) {
    return text == "tf32" ? Precision::kTf32 : text == "bf16" ? Precision::kBf16 : Precision::kFp32;
}

Gemm parse_gemm(const std::string& text) { return text == "cublas" ? Gemm::kCublas : Gemm::kOwn; }

std::unique_ptr<Backend> make_backend(const Config& config) {
    return make_backend(config.device, {.threads = config.threads,
                                        .conv = parse_conv_method(config.conv),
                                        .precision = parse_precision(config.precision),
                                        .gemm = parse_gemm(config.gemm)});
}

int decode_threads(const Config& config) {
    return config.decode_threads > 0 ? config.decode_threads : std::max(1, available_cpus() / 2);
}

}  // namespace convoy
