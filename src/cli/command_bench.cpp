// command_bench.cpp — bench kernels, allreduce and data.
#include <fmt/core.h>

#include <future>

#include "src/base/check.h"
#include "src/bench/bench.h"
#include "src/cli/commands.h"
#include "src/plan/tune.h"  // free_port
#include "src/session/job_setup.h"

namespace convoy {

// Without --coord all ranks are threads of this process.
int command_bench_allreduce(const CommandLine& given, Log& log, const Stop& stop) {
    CommandLine line = given;
    if (!access_of(given.config).token.empty() && line.config.shm == Toggle::kOn) {
        log.notice("with a token the ring uses encrypted TCP, so this measures with --shm off");
        line.config.shm = Toggle::kOff;
    }
    if (!line.config.coord.empty()) return run_in_job(line, log, stop, bench_allreduce_in_job);
    line.config.coord = cat("127.0.0.1:", free_port());
    if (line.config.world == 0) line.config.world = 2;
    const auto run = [&](int rank) {
        CommandLine own = line;
        own.config.rank = rank;
        Log quiet(stderr);
        quiet.set_quiet(true);
        return run_in_job(own, quiet, stop, bench_allreduce_in_job);
    };
    std::vector<std::future<int>> others;
    for (int rank = 1; rank < line.config.world; ++rank)
        others.push_back(std::async(std::launch::async, run, rank));
    const int status = run(0);
    for (std::future<int>& other : others) other.get();
    return status;
}

int command_bench_kernels(const CommandLine& line, Log&, const Stop&) {
    const int batch = line.given.contains("batch") ? int(line.config.batch) : 0;
    if (bench_kernels(line.config, batch) == 0)
        fail("--filter '", line.config.filter,
             "' matches no row; `trainer bench kernels` prints all rows");
    return 0;
}

int command_bench_data(const CommandLine& line, Log& log, const Stop&) {
    const Config& config = line.config;
    const Preprocess how =
        training_preprocess(config, (config.size.H ? config.size : 224).or_channels(3));
    const DataSet data = open_data(data_options(config), log);
    LoaderOptions options = loader_options(config, {1}, 0);
    if (config.decode_threads == 0) options.threads = available_cpus();
    if (!config.json) fmt::print("{}, size {}\n", data.description, input_size_text(how.size));
    Table table(config.json);
    bench_data(data.train, how, options, config.cache_decoded.bytes, 4.0, table);
    return 0;
}

}  // namespace convoy
