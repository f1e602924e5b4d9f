// device_choice.h — which device a rank computes on: a GPU of its own for each rank of a host.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "src/job/job_session.h"

namespace convoy {

// A rank among the ranks of its host.
struct LocalRank {
    int number = 0, ranks = 1;
    std::string given_by;  // who gave the number: "LOCAL_RANK"; "": counted
};
// The number is that which a launcher set, else counted among the peers of this host.
LocalRank local_rank(const CommandLine& line, std::span<const Peer> peers, int rank);

// --device "cuda" or "" → "cuda:N", N the number on the host. Throws Error where there are fewer
// GPUs than that; without --device it is "cpu" if the host has more ranks than GPUs. `bound`: the
// launcher left this process one GPU (CUDA_VISIBLE_DEVICES), which it sees as cuda:0. Any other
// device stays as it is, as does "" without a GPU.
std::string device_for(const std::string& device, const LocalRank& local, int gpus, bool bound);

// What a rank computes on.
struct RankDevice {
    std::string device, identity;  // "cuda:0", device_identity("cuda:0")
    bool by_number = false;        // its user said --device cuda:N
};
struct SharedDevice {
    std::string sentence;   // which ranks, which GPU
    bool intended = false;  // all of them asked for it by number
};
// Devices that more than one rank has; `devices` is by rank. Empty identities (CPUs) do not count.
std::vector<SharedDevice> shared_devices(std::span<const RankDevice> devices);

// Collective. Throws Error on all ranks where two compute on one GPU; if all of these asked for it
// by number, rank 0 says so on the log instead.
void compare_devices(Communicator& communicator, const RankDevice& mine, Log& log);

// Collective: job.config.device names a GPU by number after it, and no other rank computes there.
void choose_device(JobSession& job);

// The backend that --device, --threads and --precision ask for.
std::unique_ptr<Backend> make_backend(const Config& config);
// --decode-threads, or half as many as processors.
int decode_threads(const Config& config);

}  // namespace convoy
