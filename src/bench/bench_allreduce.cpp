// bench_allreduce.cpp — sums of growing sizes, one after the other.
#include <algorithm>
#include <ctime>
#include <future>

#include "src/base/clock.h"
#include "src/base/text.h"
#include "src/bench/bench.h"
#include "src/plan/measured_run.h"  // free_port

namespace convoy {

static std::vector<size_t> parse_sizes(const Config& config) {
    std::vector<size_t> sizes;
    for (const std::string& size : split(config.bytes, ','))
        sizes.push_back(parse_size(size, "--bytes").bytes);
    return sizes;
}

static std::string size_text(size_t bytes) {
    return bytes >= (1 << 20)   ? cat(bytes >> 20, " MB")
           : bytes >= (1 << 10) ? cat(bytes >> 10, " KB")
                                : cat(bytes, " B");
}

// The seconds of each sum of `bytes` bytes. Sums for about three seconds, at least 5 times; rank 0
// decides how often. A signal on any rank ends it with an Error.
static std::vector<double> time_sums(Communicator& communicator, size_t bytes, const Stop& stop) {
    std::vector<float> data(bytes / sizeof(float), 0.0f);
    communicator.allreduce_sum(data).get();  // warms memory and connections
    const auto trial = Clock::now();
    for (int i = 0; i < 3; ++i) communicator.allreduce_sum(data).get();
    const int own = int(std::clamp(3 / seconds_since(trial), 5.0, 5000.0));
    const int sums = std::stoi(broadcast_text(communicator, cat(own)));
    std::vector<double> times;
    communicator.barrier();
    for (int i = 0; i < sums; ++i) {
        if (const int signal = stop()) fail("stopped by signal ", signal);
        const auto begin = Clock::now();
        communicator.allreduce_sum(data).get();
        times.push_back(seconds_since(begin));
    }
    return times;
}

namespace {
struct SumTimes {
    std::vector<double> times;  // seconds of each
    double algorithm_gbps, bus_gbps, cpu_s_per_gb;
};
}  // namespace

static SumTimes measure(Communicator& communicator, size_t bytes, const Stop& stop,
                        int ranks_here) {
    const int world = communicator.world();
    const std::clock_t cpu_before = std::clock();  // user and system, of all threads
    const double sent_before = double(communicator.bytes_sent());
    const std::vector<double> times = time_sums(communicator, bytes, stop);
    const double cpu = double(std::clock() - cpu_before) / CLOCKS_PER_SEC / ranks_here;
    const double bus_bytes = double(bytes) * 2 * (world - 1) / world * double(times.size());
    const double on_wire = double(communicator.bytes_sent()) - sent_before;
    const double sent = on_wire > bus_bytes / 100 ? on_wire : bus_bytes;  // in shared memory
    const double algorithm = double(bytes) * 8 / 1e9 / median(times);
    return {times, algorithm, algorithm * 2 * (world - 1) / world, 1e9 * cpu / sent};
}

void bench_allreduce(Communicator& communicator, const Config& config, const Stop& stop,
                     int ranks_here) {
    const int world = communicator.world();
    if (world < 2) fail("bench allreduce needs at least two ranks: give --world 2");
    double link = 1e300;
    for (const EdgeTiming& edge : communicator.measure_edges())
        link = std::min(link, edge.bytes_per_second * 8 / 1e9);
    Table table(config.json);
    for (const size_t bytes : parse_sizes(config)) {
        const SumTimes sums = measure(communicator, bytes, stop, ranks_here);
        const Spread time = spread_of(sums.times);
        if (communicator.rank() != 0) continue;
        table.row({{"bench", "allreduce"},
                   {"world", world},
                   {"wire", get_option(config, "wire")},
                   {"shm", get_option(config, "shm")},
                   {"encrypted", config.token.empty() && config.token_file.empty() ? 0 : 1},
                   {"bytes", bytes},
                   {"", size_text(bytes), "size", "{:>6}"},
                   {"sums", sums.times.size(), "sums", "{:4}"},
                   {"median_us", 1e6 * time.median, "median us", "{:9.1f}"},
                   {"min_us", 1e6 * time.least},
                   {"max_us", 1e6 * time.most},
                   {"algorithm_gbps", sums.algorithm_gbps, "alg Gbit/s", "{:.3f}"},
                   {"bus_gbps", sums.bus_gbps, "bus Gbit/s", "{:.3f}"},
                   {"cpu_s_per_gb", sums.cpu_s_per_gb, "CPU s/GB", "{:.2f}"},
                   {"link_gbps", link, "link Gbit/s", "{:.3f}"},
                   {"", 100 * sums.bus_gbps / link, "of link", "{:.0f} %"}});
    }
}

void bench_allreduce_local(const Config& config, const Access& access) {
    parse_sizes(config);  // fails before anything is opened
    const int world = config.world > 0 ? config.world : 2;
    JoinOptions how;
    how.host = "127.0.0.1", how.port = free_port(), how.world = world, how.access = access;
    how.bf16_wire = config.wire == WireType::kBf16;
    how.shm = config.shm == Toggle::kOn;
    how.join_timeout = std::chrono::seconds(30);
    const auto run = [&](int rank) {
        JoinOptions own = how;
        own.rank = rank;
        Log log(stderr);
        log.set_quiet(true);
        Job job = join(own, log);
        bench_allreduce(
            *job.communicator, config, [] { return 0; },  // a signal ends the process
            world);
        job.communicator->barrier();
        job.communicator->leave();
    };
    std::vector<std::future<void>> others;
    for (int rank = 1; rank < world; ++rank)
        others.push_back(std::async(std::launch::async, run, rank));
    run(0);
    for (std::future<void>& other : others) other.get();
}

}  // namespace convoy
