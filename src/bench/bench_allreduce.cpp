// bench_allreduce.cpp — sums of growing sizes, one after the other.
#include <ctime>

#include "src/base/text.h"
#include "src/bench/bench.h"
#include "src/plan/timing.h"

namespace convoy {

int bench_allreduce_in_job(JobSession& job) {
    job.take_settings_of_rank0();
    const Config& config = job.config;
    Communicator& communicator = job.communicator();
    const int world = job.world();
    // Without --coord all ranks are threads of this process.
    const int ranks_here = job.line.given.contains("coord") ? 1 : world;
    if (world < 2) fail("bench allreduce needs at least two ranks: give --world 2");
    const double link = mbit_per_second(slowest_link(communicator.measure_links())) / 1e3;
    std::vector<size_t> sizes;
    for (const std::string& size : split(config.bytes, ','))
        sizes.push_back(parse_size(size, "--bytes").bytes);
    Table table(config.json);
    for (const size_t bytes : sizes) {
        const std::clock_t cpu_before = std::clock();  // user and system, of all threads
        const double sent_before = double(communicator.bytes_sent());
        const std::vector<double> times = time_sums(communicator, bytes, 1.0, job.stop);
        const double cpu = double(std::clock() - cpu_before) / CLOCKS_PER_SEC / ranks_here;
        const Spread time = spread_of(times);
        if (communicator.rank() != 0) continue;
        const double bus_bytes = double(bytes) * 2 * (world - 1) / world;
        const double on_wire = double(communicator.bytes_sent()) - sent_before;
        const double all_bytes = bus_bytes * double(times.size());
        const double sent = on_wire > all_bytes / 100 ? on_wire : all_bytes;  // in shared memory
        const double bus_gbps = bus_bytes * 8e-9 / time.median;
        table.row({{"bench", "allreduce"},
                   {"world", world},
                   {"wire", get_option(config, "wire")},
                   {"shm", get_option(config, "shm")},
                   {"encrypted", config.token.empty() && config.token_file.empty() ? 0 : 1},
                   {"bytes", bytes},
                   {"", byte_size_text({bytes}), "size", "{:>6}"},
                   {"sums", times.size(), "sums", "{:4}"},
                   {"median_us", 1e6 * time.median, "median us", "{:9.1f}"},
                   {"min_us", 1e6 * time.least},
                   {"max_us", 1e6 * time.most},
                   {"algorithm_gbps", double(bytes) * 8e-9 / time.median, "alg Gbit/s", "{:.3f}"},
                   {"bus_gbps", bus_gbps, "bus Gbit/s", "{:.3f}"},
                   {"cpu_s_per_gb", 1e9 * cpu / sent, "CPU s/GB", "{:.2f}"},
                   {"link_gbps", link, "link Gbit/s", "{:.3f}"},
                   {"", 100 * bus_gbps / link, "of link", "{:.0f} %"}});
    }
    job.finish();
    return 0;
}

}  // namespace convoy
