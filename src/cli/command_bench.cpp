// command_bench.cpp — the wiring of the benchmarks.
#include <fmt/core.h>

#include "src/base/check.h"
#include "src/base/text.h"
#include "src/bench/bench_allreduce.h"
#include "src/bench/bench_data.h"
#include "src/bench/bench_kernels.h"
#include "src/bench/bench_train.h"
#include "src/cli/commands.h"
#include "src/job/device_choice.h"
#include "src/job/job_setup.h"

namespace convoy {

int command_bench_train(const CommandLine& line, Log& log, const Stop& stop) {
    const auto started = Clock::now();
    Config config = line.config;
    log.set_quiet(config.json);
    if (config.forward && (config.compute > 0 || !config.coord.empty()))
        fail("--forward times one rank computing; it goes neither with --compute nor with --coord");
    Job job = join_job(line, log, stop);
    if (job.communicator->rank() > 0) apply_settings(config, job.settings);
    int signal = 0;
    try {
        choose_device(config, line, job, log);
        signal = bench_train(config, *job.communicator, log, stop, started);
    } catch (const std::exception& error) {
        job.communicator->abort(error.what());
        throw;
    }
    job.communicator->barrier();
    job.communicator->leave();
    return signal ? 128 + signal : 0;
}

// "1K,64K,1M" → bytes.
static std::vector<size_t> parse_sizes(const std::string& text) {
    std::vector<size_t> sizes;
    for (const std::string& word : split(text, ',')) {
        const size_t digits = word.find_first_not_of("0123456789");
        const std::string unit = digits == std::string::npos ? "" : word.substr(digits);
        const size_t factor = unit.empty() ? 1 : unit == "K" ? 1 << 10 : unit == "M" ? 1 << 20 : 0;
        if (factor == 0 || digits == 0 || word.empty() || word.size() > 9)
            fail("--bytes: '", word, "' is no size; it takes a list like 1K,64K,1M");
        sizes.push_back(size_t(std::stoul(word)) * factor);
    }
    return sizes;
}

int command_bench_allreduce(const CommandLine& line, Log& log, const Stop& stop) {
    const Config& config = line.config;
    AllreduceBench options;
    options.bytes = parse_sizes(config.bytes);
    options.bf16_wire = config.wire == "bf16";
    options.json = config.json;
    if (config.coord.empty()) {
        bench_allreduce_local(config.world > 0 ? config.world : 2, options);
        return 0;
    }
    log.set_quiet(config.json);
    Job job = join_job(line, log, stop);
    bench_allreduce(*job.communicator, options);
    job.communicator->barrier();
    job.communicator->leave();
    return 0;
}

int command_bench_kernels(const CommandLine& line) {
    KernelBench options;
    options.device = line.config.device;
    options.threads = line.config.threads;
    options.conv = parse_conv_method(line.config.conv);
    options.precision = parse_precision(line.config.precision);
    options.gemm = parse_gemm(line.config.gemm);
    options.filter = line.config.filter;
    options.json = line.config.json;
    if (bench_kernels(options) == 0)
        fail("--filter: no row has '", options.filter,
             "' in its name; `trainer bench kernels` "
             "without it shows all");
    return 0;
}

int command_bench_data(const CommandLine& line, Log& log) {
    const Config& config = line.config;
    Preprocess how;
    how.size = config.size > 0 ? config.size : 224;
    how.augment = parse_augment(config.augment.empty() ? "crop" : config.augment);
    const DataSet data = open_data(data_options(config), log);
    const int threads = config.decode_threads > 0 ? config.decode_threads : available_cpus();
    if (!config.json) fmt::print("{}, size {}\n", data.description, how.size);
    print_data_bench(bench_data(data.train, how, augments_on_device(config), threads, 2.0),
                     config.json, stdout);
    return 0;
}

}  // namespace convoy
