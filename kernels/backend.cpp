// backend.cpp — chooses the device, and counts the processors that this process may use.
#include "kernels/backend.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <numeric>
#include <set>
#include <thread>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/make_backend.h"
#include "src/base/text.h"

namespace convoy {

static std::vector<int> affinity_cpus() {
    // Linux rejects a set smaller than its number of processors; this one has room for 65,536.
    cpu_set_t set[64];
    std::vector<int> cpus;
    if (sched_getaffinity(0, sizeof set, set) == 0)
        for (size_t cpu = 0; cpu < 8 * sizeof set; ++cpu)
            if (CPU_ISSET_S(cpu, sizeof set, set)) cpus.push_back(int(cpu));
    if (!cpus.empty()) return cpus;
    std::vector<int> all(std::max(1u, std::thread::hardware_concurrency()));
    std::iota(all.begin(), all.end(), 0);
    return all;
}

// quota/period of one cgroup folder (version 2, or 1) in processors, rounded up; 0: no limit.
static int quota_cpus(const std::string& folder) {
    std::ifstream both(folder + "/cpu.max");  // "max 100000" or "150000 100000"
    std::ifstream one(folder + "/cpu.cfs_quota_us"), other(folder + "/cpu.cfs_period_us");
    double quota = 0, period = 0;
    if (!(both >> quota >> period) && !(one >> quota && other >> period)) return 0;
    return quota > 0 && period > 0 ? std::max(1, int((quota + period - 1) / period)) : 0;
}

// The smallest limit from our cgroup up to the mount's root; a container's path may be the host's.
static int cgroup_cpus() {
    int limit = std::numeric_limits<int>::max();
    const auto ask = [&](const std::string& mount, std::string path) {
        for (;;) {
            const int cpus = quota_cpus(mount + path);
            if (cpus > 0) limit = std::min(limit, cpus);
            if (path.empty() || path == "/") return;
            path.resize(path.rfind('/'));
        }
    };
    std::ifstream file("/proc/self/cgroup");  // lines of "number:controllers:path"
    for (std::string line; std::getline(file, line);) {
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string names = cat(",", line.substr(first + 1, second - first - 1), ",");
        const std::string path = line.substr(second + 1);
        if (path.empty() || path[0] != '/') continue;
        if (names == ",,") ask("/sys/fs/cgroup", path);
        if (names.find(",cpu,") != std::string::npos) {
            ask("/sys/fs/cgroup/cpu", path);
            ask("/sys/fs/cgroup/cpu,cpuacct", path);
        }
    }
    return limit;
}

int available_cpus() { return std::min(int(affinity_cpus().size()), cgroup_cpus()); }
int available_cores() { return std::min(count_cores(affinity_cpus()), cgroup_cpus()); }

int count_cores(std::span<const int> cpus, const std::string& folder) {
    std::set<std::string> cores;
    for (const int cpu : cpus) {
        std::string siblings;
        std::getline(std::ifstream(cat(folder, "/cpu", cpu, "/topology/thread_siblings_list")),
                     siblings);
        cores.insert(siblings.empty() ? cat("unknown ", cpu) : siblings);
    }
    return int(cores.size());
}

std::string compile_notice(const std::string& built, int major, int minor) {
    for (const std::string& text : split(built, ' ')) {
        const int its = text.empty() ? 0 : std::stoi(text);  // "90a" runs on 9.0 alone
        if (its / 10 == major && its % 10 <= minor) return "";
    }
    const char* cache = std::getenv("CUDA_CACHE_PATH");
    return cat("; built without machine code for it: the driver compiles the kernels at the first ",
               "start, a few minutes, and keeps them in ", cache ? cache : "~/.nv/ComputeCache",
               " (`make ARCH=", major, minor, "` avoids that)");
}

void choose_kernel_cache() {
    const char *home = std::getenv("HOME"), *tmp = std::getenv("TMPDIR");
    if (std::getenv("CUDA_CACHE_PATH") || (home && access(home, W_OK) == 0)) return;
    const std::string folder = cat(tmp ? tmp : "/tmp", "/convoy-kernels-", getuid());
    mkdir(folder.c_str(), 0700);
    struct stat is {};  // nobody else may put machine code there
    if (lstat(folder.c_str(), &is) == 0 && S_ISDIR(is.st_mode) && is.st_uid == getuid() &&
        (is.st_mode & 077) == 0)
        setenv("CUDA_CACHE_PATH", folder.c_str(), 0);
}

int count_gpus(std::string* why_none) {
    std::string reason;
    std::string& why = why_none ? *why_none : reason;
    if (cuda::count_devices) choose_kernel_cache();  // before CUDA starts
    if (cuda::count_devices) return cuda::count_devices(&why);
    why = "built without CUDA kernels (make CUDA=1)";
    return 0;
}

// The index of the GPU `device`; -1: there is no GPU and `device` is "", which also allows the CPU.
static int gpu_of(const std::string& device, std::string* why_none) {
    if (device == "simt")
        fail("--device simt: built without the emulator; run `make trainer-simt` to build with it");
    const std::string number = device.starts_with("cuda:") ? device.substr(5) : "";
    const auto index = device.empty() || device == "cuda" ? 0 : to_number<uint16_t>(number);
    if (!index) fail("--device cannot be '", device, "'; use cpu, cuda, cuda:INDEX or simt");
    const int gpus = count_gpus(why_none);
    if (*index < gpus) return *index;
    if (device.empty()) return -1;
    if (gpus == 0)
        fail("--device ", device, ": no GPU can be used (", *why_none, "); use --device cpu");
    fail("--device ", device, ": this process may use ", counted(gpus, "GPU"),
         "; the first is cuda:0");
}

std::string device_identity(const std::string& device) {
    if (device == "cpu") return "";
    if (device == "simt" && simt::device_identity) return simt::device_identity(0);
    std::string why_none;
    const int index = gpu_of(device, &why_none);
    return index < 0 ? "" : cuda::device_identity(index);
}

static std::unique_ptr<Backend> make_cpu(const BackendOptions& options, std::string why = "") {
    if (options.precision == Precision::kTf32)
        fail("--precision tf32 needs a GPU or --device simt; use fp32 or bf16 on the CPU",
             why.empty() ? "" : "; ", why);
    const Micro& micro = pick_micro(options.precision == Precision::kBf16);
    return std::make_unique<CpuBackend>(options, micro, std::move(why));
}

std::unique_ptr<Backend> make_backend(const std::string& device, const BackendOptions& options) {
    if (device == "cpu") return make_cpu(options);
    if (device == "simt" && simt::make_device_backend) return simt::make_device_backend(0, options);
    std::string why_none;
    const int index = gpu_of(device, &why_none);
    return index < 0 ? make_cpu(options, cat("no GPU: ", why_none))
                     : cuda::make_device_backend(index, options);
}

std::string built_backends() {
    return cat("cpu", simt::make_device_backend ? ", simt" : "",
               cuda::architectures
                   ? cat(", cuda for compute capabilities ", cuda::architectures(), " and later")
                   : " (built without CUDA kernels)");
}

}  // namespace convoy
