// device_choice.h — which device a rank computes on: a GPU of its own for each rank of a host.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "src/session/job_session.h"

namespace convoy {

// A rank among the ranks of its host.
struct LocalRank {
    int number = 0, ranks = 1;
    std::string given_by;  // who gave the number: "LOCAL_RANK"; "": counted
};
// The number that a launcher set, else this rank's place among the peers of its host.
LocalRank local_rank(const CommandLine& line, std::span<const Peer> peers, int rank);

// --device "cuda" or "" → "cuda:N", where N is the rank's number on its host. Throws Error if the
// host has no GPU N; but without --device the result is "cpu" if the host has more ranks than GPUs.
// `bound`: the launcher left this process one GPU (CUDA_VISIBLE_DEVICES), which is cuda:0 in this
// process. Any other device stays as it is, and so does "" without a GPU.
std::string device_for(const std::string& device, const LocalRank& local, int gpus, bool bound);

// What a rank computes on.
struct RankDevice {
    std::string device, identity;  // "cuda:0", device_identity("cuda:0"); "": a CPU
    bool by_number = false;        // the user gave --device cuda:N
};
// Collective. Throws Error on all ranks if two ranks compute on one GPU. If all ranks of this GPU
// chose it by number, rank 0 logs it instead.
void compare_devices(Communicator& communicator, const RankDevice& mine, Log& log);

// Collective. Resolves job.config.device to a GPU's number or the CPU, then compare_devices().
void choose_device(JobSession& job);

// The backend that --device, --threads and --precision ask for.
std::unique_ptr<Backend> make_backend(const Config& config);

}  // namespace convoy
