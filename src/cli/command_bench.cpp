// command_bench.cpp — bench train, kernels, allreduce and data.
#include <fmt/core.h>

#include "src/base/check.h"
#include "src/bench/bench.h"
#include "src/cli/commands.h"
#include "src/job/job_setup.h"

namespace convoy {

static int bench_train_in_job(JobSession& job) {
    const Clock::time_point started = Clock::now();
    job.take_settings_of_rank0();
    choose_device(job);
    const int signal = bench_train(job.config, job.communicator(), job.log, job.stop, started);
    job.finish();
    return signal ? 128 + signal : 0;
}

static int command_bench_train(const CommandLine& line, Log& log, const Stop& stop) {
    return run_in_job(line, log, stop, bench_train_in_job);
}

static int bench_allreduce_in_job(JobSession& job) {
    job.take_settings_of_rank0();
    bench_allreduce(job.communicator(), job.config, job.stop);
    job.finish();
    return 0;
}

static int command_bench_allreduce(const CommandLine& line, Log& log, const Stop& stop) {
    CommandLine own = line;
    const Access access = access_of(line.config);
    if (!access.token.empty() && own.config.shm == Toggle::kOn) {
        log.notice("with a token the ring uses encrypted TCP, so this measures with --shm off");
        own.config.shm = Toggle::kOff;
    }
    if (!line.config.coord.empty()) return run_in_job(own, log, stop, bench_allreduce_in_job);
    bench_allreduce_local(own.config, access);
    return 0;
}

static int command_bench_kernels(const CommandLine& line, Log&, const Stop&) {
    const int batch = line.given.contains("batch") ? int(line.config.batch) : 0;
    if (bench_kernels(line.config, batch) == 0)
        fail("--filter '", line.config.filter,
             "' matches no row; `trainer bench kernels` prints all rows");
    return 0;
}

static int command_bench_data(const CommandLine& line, Log& log, const Stop&) {
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

const CommandRow kBenchTrainRow = {"bench train", kBenchTrain, "[--model M --batch B --steps K]",
                                   "images per second of training steps, without input pipeline",
                                   command_bench_train};
const CommandRow kBenchKernelsRow = {
    "bench kernels", kBenchKernels, "[--filter WORD]",
    "time each operation of real training steps, in percent of the machine's limit",
    command_bench_kernels};
const CommandRow kBenchAllreduceRow = {
    "bench allreduce", kBenchAllreduce, "--world W [--bytes 1K,1M]",
    "speed of sums among local processes, or across hosts with --coord and --rank",
    command_bench_allreduce};
const CommandRow kBenchDataRow = {"bench data", kBenchData, "[--data DIR --size S]",
                                  "images per second of the input pipeline", command_bench_data};

}  // namespace convoy
