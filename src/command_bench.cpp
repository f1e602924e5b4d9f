// command_bench.cpp — bench train: training steps without input pipeline; and the wiring of the
// other benchmarks.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "data/order.h"
#include "src/base/check.h"
#include "src/base/random.h"
#include "src/base/text.h"
#include "src/bench_allreduce.h"
#include "src/bench_data.h"
#include "src/bench_kernels.h"
#include "src/commands.h"
#include "src/job_setup.h"
#include "src/trainer.h"

namespace convoy {

using nlohmann::json;

static double peak_rss_mb() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return double(usage.ru_maxrss) / 1024;
}

// A batch of random pixels and labels: rank's share of a global batch, always the same.
static Batch random_batch(const Config& config, int rank, int world, int classes, float* slot) {
    const std::vector<double> shares(size_t(world), 1.0);
    const Range share = share_of(config.batch, shares, rank);
    Batch batch;
    batch.x = slot;
    batch.n = batch.wanted = int(share.size());
    batch.global_wanted = config.batch;
    for (int64_t i = share.begin; i < share.end; ++i) {
        Random random(uint64_t(config.seed), 0, uint64_t(i), kBench);
        batch.samples.push_back(uint64_t(i));
        batch.positions.push_back(int32_t(i));
        batch.labels.push_back(int32_t(random.below(uint64_t(classes))));
        float* row = slot + size_t(i - share.begin) * size_t(config.size) * size_t(config.size) * 3;
        for (int p = 0; p < config.size * config.size * 3; ++p) row[p] = random.uniform(-2, 2);
    }
    return batch;
}

// Forward, gradient of x and gradient of w cost the same; the first layer needs no gradient of x.
static double train_flops(const Model& model) {
    double flops = 3 * model.forward_flops();
    for (const LayerLine& line : model.lines())
        if (line.flops > 0) return flops - line.flops;
    return flops;
}

int command_bench_train(const CommandLine& line, Log& log, const Stop& stop) {
    const auto started = std::chrono::steady_clock::now();
    Config config = line.config;
    log.set_quiet(config.json);
    Job job = join_job(line, log, stop);
    Communicator& communicator = *job.communicator;
    const std::string text = model_text(config.model);
    if (config.size == 0) config.size = model_input_size(text);
    const int classes = config.classes.empty() ? 3 : std::max(1, std::atoi(config.classes.c_str()));
    const int steps = config.steps > 0 ? int(config.steps) : 5;

    const auto backend = make_backend(config);
    Model model(text, {config.model, classes, config.size, uint64_t(config.seed), ""}, *backend);
    const std::vector<double> shares(size_t(communicator.world()), 1.0);
    const int local = int(share_of(config.batch, shares, communicator.rank()).size());
    model.plan(std::max(local, 1), /*training=*/true);
    Optimizer optimizer(config, model.params(), *backend);
    Trainer trainer(config, *backend, communicator, model, optimizer, stop);
    float* slot =
        backend->alloc_host(Shape{std::max(local, 1), config.size, config.size, 3}.elems());
    const Batch batch =
        random_batch(config, communicator.rank(), communicator.world(), classes, slot);

    std::vector<double> speeds;
    double first_step = 0, waited = 0, total = 0;
    for (int step = 0; step <= steps; ++step) {  // the first one warms up and is not counted
        const double waited_before = trainer.seconds_waited_for_network();
        const auto begin = std::chrono::steady_clock::now();
        trainer.step(batch, {0, 0, step}, 1e-4);
        const auto end = std::chrono::steady_clock::now();
        const double seconds = std::chrono::duration<double>(end - begin).count();
        if (step == 0) {
            first_step = std::chrono::duration<double>(end - started).count();
            continue;
        }
        speeds.push_back(double(config.batch) / seconds);
        waited += trainer.seconds_waited_for_network() - waited_before;
        total += seconds;
        if (trainer.stop_agreed()) return 128 + trainer.stop_agreed();
    }
    communicator.barrier();
    communicator.leave();
    if (communicator.rank() != 0) return 0;

    std::sort(speeds.begin(), speeds.end());
    const double median = speeds[speeds.size() / 2];
    const double gflops = median / communicator.world() * train_flops(model) / 1e9;
    const double peak = backend->measure_peak_gflops();
    if (config.json) {
        fmt::print("{}\n", json{{"bench", "train"},
                                {"model", config.model},
                                {"batch", config.batch},
                                {"size", config.size},
                                {"classes", classes},
                                {"world", communicator.world()},
                                {"threads", backend->threads()},
                                {"images_per_second", median},
                                {"images_per_second_min", speeds.front()},
                                {"images_per_second_max", speeds.back()},
                                {"gflops", gflops},
                                {"peak_gflops", peak},
                                {"percent_of_peak", peak > 0 ? 100 * gflops / peak : 0},
                                {"net_wait", waited / total},
                                {"first_step_seconds", first_step},
                                {"peak_rss_mb", peak_rss_mb()}}
                               .dump());
        return 0;
    }
    fmt::print("{:<10} {:>5} {:>5} {:>6} {:>22} {:>9} {:>9} {:>6} {:>11} {:>9}\n", "model", "batch",
               "size", "ranks", "img/s median (min-max)", "GFLOP/s", "% of peak", "net %",
               "first step", "peak RSS");
    fmt::print(
        "{:<10} {:>5} {:>5} {:>6} {:>22} {:>9.0f} {:>9.0f} {:>6.0f} {:>9.2f} s {:>6.0f} MB\n",
        config.model, config.batch, config.size, communicator.world(),
        fmt::format("{:.2f} ({:.2f}-{:.2f})", median, speeds.front(), speeds.back()), gflops,
        peak > 0 ? 100 * gflops / peak : 0, 100 * waited / total, first_step, peak_rss_mb());
    return 0;
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
        options.world = config.world > 0 ? config.world : 2;
        bench_allreduce_local(options);
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
    print_data_bench(bench_data(data.train, how, threads, 2.0), config.json, stdout);
    return 0;
}

}  // namespace convoy
