// device_choice.h — a GPU of its own for every rank, and a word where two share one.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "net/communicator.h"
#include "src/config/config.h"

namespace convoy {

// Where a rank stands among the ranks of its host, counted from 0.
struct LocalPlace {
    int number = 0, ranks = 1;
    std::string who;  // the launcher's variable that said so; "": counted
};
// From LOCAL_RANK and its like (CommandLine::launcher), else this rank's place among the peers of
// its host. Throws Error where two variables disagree.
LocalPlace local_place(const std::map<std::string, std::string>& launcher,
                       std::span<const Peer> peers, int rank);

// --device "cuda" or "" → "cuda:i", i the place on the host: ranks never take turns on a GPU
// unasked. Throws Error where there are fewer GPUs than that; without --device it then is "cpu" if
// the ranks of the host are more than its GPUs. `bound`: the launcher left this process one GPU of
// several (CUDA_VISIBLE_DEVICES), which it sees as cuda:0. Any other device, and "" without a GPU,
// stays.
std::string device_for(const std::string& device, const LocalPlace& place, int gpus, bool bound);

// What a rank computes on, for the others.
struct DeviceClaim {
    std::string device, identity;  // "cuda:0", device_identity("cuda:0")
    bool by_number = false;        // its user said --device cuda:i
};
struct SharedDevice {
    std::string sentence;  // which ranks, which GPU
    bool meant = false;    // all of them asked for it by number
};
// Devices with more than one claim; claims are by rank. An empty identity is shared by all.
std::vector<SharedDevice> shared_devices(std::span<const DeviceClaim> claims);

// Collective: tells the others what this rank computes on. Throws Error where two ranks are on one
// GPU, unless all of these asked for it by number; then rank 0 says so on the log.
void compare_devices(Communicator& communicator, const DeviceClaim& mine, Log& log);

// All of it, for a command that has joined: config.device names a GPU by number after it, and no
// other rank computes there. Collective.
void choose_device(Config& config, const CommandLine& line, const Job& job, Log& log);

// The backend that --device, --threads and --conv ask for.
std::unique_ptr<Backend> make_backend(const Config& config);
ConvMethod parse_conv_method(const std::string& text);  // of --conv
Precision parse_precision(const std::string& text);     // of --precision
Gemm parse_gemm(const std::string& text);               // of --gemm
// Threads that decode: as asked, or one for each two processors.
int decode_threads(const Config& config);

}  // namespace convoy
