#include "src/bench/bench_allreduce.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "src/base/median.h"

namespace convoy {

namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// How often to sum: as rank 0 says, so that all do it as often.
int broadcast_sum_count(Communicator& communicator, double one_us, double seconds) {
    int sums = int(std::clamp(seconds * 1e6 / one_us, 5.0, 5000.0));
    communicator.broadcast(std::as_writable_bytes(std::span(&sums, 1)), 0);
    return sums;
}

std::string size_text(size_t bytes) {
    return bytes >= (1 << 20)   ? fmt::format("{} MB", bytes >> 20)
           : bytes >= (1 << 10) ? fmt::format("{} KB", bytes >> 10)
                                : fmt::format("{} B", bytes);
}

void print(const AllreduceBench& options, int world, const AllreduceResult& r) {
    if (options.json)
        fmt::print(
            options.out,
            "{{\"bench\":\"allreduce\",\"world\":{},\"wire\":\"{}\",\"bytes\":{},\"sums\":{},"
            "\"median_us\":{:.1f},\"min_us\":{:.1f},\"max_us\":{:.1f},\"algorithm_gbps\":"
            "{:.3f},\"bus_gbps\":{:.3f},\"link_gbps\":{:.3f}}}\n",
            world, options.bf16_wire ? "bf16" : "fp32", r.bytes, r.sums, r.median_us, r.min_us,
            r.max_us, r.algorithm_gbps, r.bus_gbps, r.link_gbps);
    else
        fmt::print(options.out, "{:>9} {:>6} {:>12.1f} {:>12.3f} {:>12.3f} {:>12.3f} {:>7.0f} %\n",
                   size_text(r.bytes), r.sums, r.median_us, r.algorithm_gbps, r.bus_gbps,
                   r.link_gbps, 100 * r.bus_gbps / r.link_gbps);
    std::fflush(options.out);
}

}  // namespace

std::vector<AllreduceResult> bench_allreduce(Communicator& communicator,
                                             const AllreduceBench& options) {
    const int world = communicator.world();
    if (world < 2) fail("bench allreduce needs at least two ranks");
    double link = 1e300;
    for (const EdgeTiming& edge : communicator.measure_edges())
        link = std::min(link, edge.bytes_per_second);
    if (communicator.rank() == 0 && !options.json)
        fmt::print(options.out, "{:>9} {:>6} {:>12} {:>12} {:>12} {:>12} {:>9}\n", "size", "sums",
                   "median µs", "alg Gbit/s", "bus Gbit/s", "link Gbit/s", "of link");

    std::vector<AllreduceResult> results;
    for (const size_t bytes : options.bytes) {
        std::vector<float> data(bytes / sizeof(float), 0.0f);
        communicator.allreduce_sum(data).get();  // memory and connections warm
        const auto trial = Clock::now();
        for (int i = 0; i < 3; ++i) communicator.allreduce_sum(data).get();
        const int sums =
            broadcast_sum_count(communicator, microseconds_since(trial) / 3, options.seconds);
        std::vector<double> times;
        communicator.barrier();
        for (int i = 0; i < sums; ++i) {
            const auto start = Clock::now();
            communicator.allreduce_sum(data).get();
            times.push_back(microseconds_since(start));
        }
        AllreduceResult r{};
        r.bytes = bytes;
        r.sums = sums;
        r.median_us = median(times);
        r.min_us = *std::min_element(times.begin(), times.end());
        r.max_us = *std::max_element(times.begin(), times.end());
        r.algorithm_gbps = double(bytes) * 8 / r.median_us / 1e3;
        r.bus_gbps = r.algorithm_gbps * 2 * (world - 1) / world;
        r.link_gbps = link * 8 / 1e9;
        if (communicator.rank() == 0) print(options, world, r);
        results.push_back(r);
    }
    return results;
}

std::vector<AllreduceResult> bench_allreduce_local(const AllreduceBench& options) {
    // The children read the coordinator's port from a pipe; the parent is rank 0 and knows it.
    int port_pipe[2];
    if (pipe(port_pipe) != 0) fail("bench allreduce cannot open a pipe");
    std::fflush(nullptr);
    const auto run = [&](int rank) {
        JoinOptions join_options;
        join_options.host = "127.0.0.1";
        join_options.rank = rank;
        join_options.world = options.world;
        join_options.bf16_wire = options.bf16_wire;
        join_options.join_timeout = std::chrono::seconds(30);
        if (rank == 0)
            join_options.listening = [&](uint16_t port) {
                for (int i = 1; i < options.world; ++i)
                    if (write(port_pipe[1], &port, sizeof port) != sizeof port)
                        fail("bench allreduce cannot tell its ranks the port");
            };
        else if (read(port_pipe[0], &join_options.port, sizeof join_options.port) !=
                 sizeof join_options.port)
            fail("bench allreduce: rank 0 has ended");
        Log log(stderr);
        log.set_quiet(true);
        Job job = join(join_options, log);
        auto results = bench_allreduce(*job.communicator, options);
        job.communicator->barrier();
        job.communicator->leave();
        return results;
    };
    std::vector<pid_t> children;
    for (int rank = 1; rank < options.world; ++rank) {
        const pid_t child = fork();
        if (child < 0) fail("bench allreduce cannot start rank ", rank);
        if (child > 0) {
            children.push_back(child);
            continue;
        }
        close(port_pipe[1]);
        int status = 0;
        try {
            run(rank);
        } catch (const std::exception& e) {
            status = 1;
            fmt::print(stderr, "rank {}: {}\n", rank, e.what());
        }
        _exit(status);  // the parent's objects are not this process's to tear down
    }
    close(port_pipe[0]);
    auto results = run(0);
    close(port_pipe[1]);
    for (pid_t child : children) waitpid(child, nullptr, 0);
    return results;
}

}  // namespace convoy
