// device_choice.cpp — see device_choice.h.
//
// Two checks. The number of GPUs is checked before any GPU is used. But a launcher, or two
// containers on one host, may give two ranks the same GPU. So the ranks also compare UUIDs. These
// are the same in every container and with every CUDA_VISIBLE_DEVICES.
#include "src/session/device_choice.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include "src/base/text.h"
#include "src/session/rank_json.h"

namespace convoy {

using nlohmann::json;

LocalRank local_rank(const CommandLine& line, std::span<const Peer> peers, int rank) {
    LocalRank local;
    if (size_t(rank) < peers.size()) {
        const auto same_host = [&](const Peer& peer) { return peer.host == peers[rank].host; };
        local.ranks = int(std::count_if(peers.begin(), peers.end(), same_host));
        local.number = int(std::count_if(peers.begin(), peers.begin() + rank, same_host));
    }
    if (line.config.local_rank >= 0) {
        local.number = line.config.local_rank;
        local.given_by = line.given.at("local-rank");
    }
    return local;
}

std::string device_for(const std::string& device, const LocalRank& local, int gpus, bool bound) {
    if ((!device.empty() && device != "cuda") || gpus == 0) return device;
    if (bound && gpus == 1) return "cuda:0";
    if (device.empty() && local.ranks > gpus) return "cpu";
    if (local.number >= gpus)
        fail("each rank of a host needs a GPU of its own: this is rank ", local.number,
             " of its host, counted from 0",
             local.given_by.empty() ? "" : cat(" (", local.given_by, ")"), ", and there ",
             gpus == 1 ? "is " : "are ", counted(gpus, "GPU"), " for ",
             counted(std::max(local.ranks, local.number + 1), "rank"),
             "; start fewer ranks, or give --device cuda:N to ranks that should share a GPU");
    return cat("cuda:", local.number);
}

void compare_devices(Communicator& communicator, const RankDevice& mine, Log& log) {
    struct Users {
        std::vector<std::string> ranks;
        bool intended = true;  // all of them chose it by number
    };
    std::map<std::string, Users> users_of;  // by identity
    int rank = 0;
    for (const json& one :
         gather_json(communicator, {mine.device, mine.identity, mine.by_number})) {
        Users& users = users_of[one[1]];
        users.ranks.push_back(cat("rank ", rank++, " (", one[0].get<std::string>(), ")"));
        users.intended &= one[2].get<bool>();
    }
    for (const auto& [identity, users] : users_of) {
        if (identity.empty() || users.ranks.size() < 2) continue;
        const std::string found =
            cat(join_text(users.ranks), " compute on the same GPU, ", identity);
        if (!users.intended)
            fail(found,
                 "; give each of these ranks its own GPU by --device cuda:N, or give all "
                 "of them the same N if they should share one GPU");
        if (communicator.rank() == 0) log.notice(found, ", as asked for");
    }
}

void choose_device(JobSession& job) {
    const std::string asked = job.config.device;
    const int gpus = asked.empty() || asked == "cuda" ? count_gpus() : 0;
    if (gpus > 0) {
        const LocalRank local = local_rank(job.line, job.peers(), job.rank());
        const bool bound = !environment_variable("CUDA_VISIBLE_DEVICES").empty();
        job.config.device = device_for(asked, local, gpus, bound);
        if (job.config.device == "cpu")
            job.log.notice("on the CPU: this host has ", counted(local.ranks, "rank"), " and ",
                           counted(gpus, "GPU"),
                           "; --device cuda:N on each rank lets them share GPUs");
    }
    if (job.world() == 1 || job.is_newcomer()) return;
    const std::string& device = job.config.device;
    compare_devices(
        job.communicator(),
        {device.empty() ? "cpu" : device, device_identity(device), asked.starts_with("cuda:")},
        job.log);
}

std::unique_ptr<Backend> make_backend(const Config& config) {
    return make_backend(config.device, {.threads = config.threads, .precision = config.precision});
}

}  // namespace convoy
