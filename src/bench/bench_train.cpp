// bench_train.cpp — see bench_train.h.
#include "src/bench/bench_train.h"

#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "data/order.h"
#include "src/base/check.h"
#include "src/base/median.h"
#include "src/job/device_choice.h"
#include "src/train/input.h"
#include "src/train/random_batch.h"
#include "src/train/trainer.h"

namespace convoy {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

double peak_rss_mb() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return double(usage.ru_maxrss) / 1024;
}

// Forward, gradient of x and gradient of w cost the same; the first layer needs no gradient of x.
double train_flops(const Model& model) {
    double flops = 3 * model.forward_flops();
    for (const LayerLine& line : model.lines())
        if (line.flops > 0) return flops - line.flops;
    return flops;
}

// What a step of the bench does.
class Work {
 public:
    virtual ~Work() = default;
    // `last`: of the steps after which ranks average, with --sync-every.
    virtual void step(const Batch& batch, int64_t number, bool last) = 0;
    virtual double seconds_waited() const { return 0; }  // for the network, since it was made
    // The signal on which all ranks stop after this step, or 0; `own` is what this one has seen.
    virtual int stop_agreed(int own) const { return own; }
    virtual std::string take_graph_failure() { return {}; }
};

// A step whose layers sleep: a third of the time forward, then rows in backward order, each after
// its layer's part of the rest.
class Sleeper : public Work {
 public:
    Sleeper(const Config& config, Model& model, Backend& backend, Communicator& communicator,
            std::vector<int64_t> rows)
        : model_(model),
          reducer_(model.params(), backend, communicator,
                   reducer_options(config, model.params(), communicator.world())),
          rows_(std::move(rows)),
          seconds_(config.compute) {
        x_.resize(size_t(model.max_batch()) * widest());
    }
    void step(const Batch& batch, int64_t, bool) override {
        std::fill_n(model_.params().counters(), StepCounters::kSize, 0.0f);
        wake_ = Clock::now();
        sleep(seconds_ / 3);
        reducer_.start(rows_);
        const std::vector<LayerLine> lines = model_.lines();
        const std::vector<Param*> all = model_.params().all();
        const Param* bias = nullptr;  // of a linear layer: comes with its weights, which are next
        for (auto row = all.rbegin(); row != all.rend(); ++row) {
            const Param& w = **row;
            const bool of_linear = row + 1 != all.rend() && (*(row + 1))->dims == 2 && w.dims == 1;
            if (of_linear) bias = &w;
            if (of_linear || w.running || w.frozen) continue;
            if (w.dims > 1) sleep(seconds_ * 2 / 3 * flops_of(w, lines) / model_.forward_flops());
            const bool as_factors =
                w.dims == 2 && reducer_.take_factors(w, {x_.data(), batch.n, 1, 1, w.shape.C},
                                                     {x_.data(), batch.n, 1, 1, w.shape.N});
            if (!as_factors && bias) reducer_.ready(*bias);
            if (!as_factors) reducer_.ready(w);
            bias = nullptr;
        }
        reducer_.finish();
    }
    double seconds_waited() const override { return reducer_.seconds_waited(); }

 private:
    double flops_of(const Param& w, const std::vector<LayerLine>& lines) const {
        const std::string name = layer_name(w.name);
        for (const LayerLine& line : lines)
            if (line.name == name) return line.flops;
        return 0;
    }
    size_t widest() {
        int widest = 1;
        for (const Param* row : model_.params().all())
            if (row->dims == 2) widest = std::max({widest, row->shape.C, row->shape.N});
        return size_t(widest);
    }
    // By the clock rather than one after the other, so that late wake-ups do not add up.
    void sleep(double seconds) {
        wake_ +=
            std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
        std::this_thread::sleep_until(wake_);
    }

    Model& model_;
    GradReducer reducer_;
    std::vector<int64_t> rows_;  // images of each rank
    double seconds_;
    Clock::time_point wake_;
    std::vector<float> x_;  // stands for every x and dy
};

// What eval and predict compute.
class Forward : public Work {
 public:
    Forward(Model& model, Backend& backend)
        : model_(model),
          backend_(backend),
          sums_(backend.alloc(BatchSums::kFloats)),
          input_(backend, model) {}
    void step(const Batch& batch, int64_t, bool) override {
        const Tensor logits = model_.forward(input_.take(batch), {false, {}, batch.samples, {}});
        backend_.softmax_cross_entropy(logits, batch.labels, 0, {nullptr, logits.shape()}, sums_);
        backend_.synchronize();
    }

 private:
    Model& model_;
    Backend& backend_;
    float* sums_;
    Input input_;
};

class Training : public Work {
 public:
    Training(const Config& config, Model& model, Backend& backend, Communicator& communicator,
             const std::vector<double>& shares, const std::function<int()>& stop)
        : optimizer_(config, model.params(), backend),
          trainer_(config, backend, communicator, model, optimizer_, shares, stop) {}
    void step(const Batch& batch, int64_t number, bool last) override {
        const Position at{0, 0, number};
        if (!trainer_.step(batch, at, 1e-4, &batch) && last) trainer_.average(at);
    }
    double seconds_waited() const override { return trainer_.seconds_waited_for_network(); }
    int stop_agreed(int) const override { return trainer_.stop_agreed(); }
    std::string take_graph_failure() override { return trainer_.take_graph_failure(); }

 private:
    Optimizer optimizer_;
    Trainer trainer_;
};

// Takes the times of `groups` of --sync-every steps, after one that warms up; where steps are
// recorded after four, as they are when they come to each place of the input a second time.
void measure(const Config& config, int groups, Work& work, const Batch& batch,
             const Communicator& communicator, const std::function<int()>& stop,
             TrainBench& result) {
    double waited = 0, busy = 0, total = 0;
    uint64_t bytes = 0;
    result.first_step_begin = Clock::now();
    int64_t number = 0;
    for (int group = result.why_no_graph.empty() ? -3 : 0; group <= groups && !result.signal;
         ++group) {
        const double waited_before = work.seconds_waited();
        const double busy_before = communicator.seconds_busy();
        const uint64_t bytes_before = communicator.bytes_sent();
        const auto begin = Clock::now();
        for (int i = 1; i <= config.sync_every; ++i) {
            work.step(batch, number++, i == config.sync_every);
            if (number == 1) result.first_step_end = Clock::now();
        }
        const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
        result.signal = work.stop_agreed(stop());
        if (group <= 0) continue;
        total += seconds;
        waited += work.seconds_waited() - waited_before;
        busy += communicator.seconds_busy() - busy_before;
        bytes += communicator.bytes_sent() - bytes_before;
        result.images_per_second.push_back(double(config.batch * config.sync_every) / seconds);
    }
    result.net_wait = total > 0 ? waited / total : 0;
    result.net_busy = total > 0 ? busy / total : 0;
    result.bytes_a_step = double(bytes) / (double(groups) * config.sync_every);
}

}  // namespace

TrainBench bench_train(const Config& config, Communicator& communicator,
                       const std::function<int()>& stop) {
    if (config.compute > 0 && config.sync_every > 1)
        fail("--compute sleeps in steps that sum every gradient; it does not go with --sync-every");
    TrainBench result;
    const std::string text = model_text(config.model);
    result.model = config.model, result.batch = config.batch;
    result.size = config.size ? config.size : model_input_size(text);
    result.classes = class_count(config);
    result.world = communicator.world();
    result.why_no_graph = config.graph == "off"                  ? "--graph off"
                          : config.forward || config.compute > 0 ? "these are no whole steps"
                                                                 : "";
    const int groups = config.steps > 0 ? int(config.steps) : 5;  // timed: H steps each

    const auto backend = make_backend(config);
    result.threads = backend->threads();
    if (result.why_no_graph.empty()) result.why_no_graph = why_no_graph(*backend, result.world);
    Model model(text, {config.model, result.classes, result.size, uint64_t(config.seed), ""},
                *backend);
    const std::vector<double> shares(size_t(result.world), 1.0);
    std::vector<int64_t> rows;
    for (int rank = 0; rank < result.world; ++rank)
        rows.push_back(share_of(config.batch, shares, rank).size());
    const Range share = share_of(config.batch, shares, communicator.rank());
    const int local = std::max(int(share.size()), 1);
    model.plan(local, /*training=*/!config.forward);
    float* slot = backend->alloc_host(Shape{local, result.size, result.size, 3}.elems());
    const Batch batch =
        random_batch(share, config.batch, result.size, result.classes, uint64_t(config.seed), slot);

    std::unique_ptr<Work> work;
    if (config.forward)
        work = std::make_unique<Forward>(model, *backend);
    else if (config.compute > 0)
        work = std::make_unique<Sleeper>(config, model, *backend, communicator, std::move(rows));
    else
        work = std::make_unique<Training>(config, model, *backend, communicator, shares, stop);
    measure(config, groups, *work, batch, communicator, stop, result);
    if (const std::string why = work->take_graph_failure(); !why.empty()) result.why_no_graph = why;
    result.device_bytes = backend->device_bytes();
    if (config.compute == 0 && !result.images_per_second.empty()) {
        const double flops = config.forward ? model.forward_flops() : train_flops(model);
        result.gflops = median(result.images_per_second) / double(config.batch) *
                        double(share.size()) * flops / 1e9;
        result.peak_gflops = backend->measure_peak_gflops();
    }
    return result;
}

void print_train_bench(const TrainBench& r, bool json_lines) {
    const std::vector<double>& speeds = r.images_per_second;
    const double middle = median(speeds);
    const auto [least, most] = std::minmax_element(speeds.begin(), speeds.end());
    const double percent = r.peak_gflops > 0 ? 100 * r.gflops / r.peak_gflops : 0;
    if (json_lines) {
        fmt::print("{}\n", json{{"bench", "train"},
                                {"model", r.model},
                                {"batch", r.batch},
                                {"size", r.size},
                                {"classes", r.classes},
                                {"world", r.world},
                                {"threads", r.threads},
                                {"images_per_second", middle},
                                {"images_per_second_min", *least},
                                {"images_per_second_max", *most},
                                {"gflops", r.gflops},
                                {"peak_gflops", r.peak_gflops},
                                {"percent_of_peak", percent},
                                {"net_wait", r.net_wait},
                                {"net_busy", r.net_busy},
                                {"bytes_a_step", r.bytes_a_step},
                                {"start_seconds", r.start_seconds},
                                {"first_step_seconds", r.first_step_seconds},
                                {"graph", r.why_no_graph.empty()},
                                {"peak_rss_mb", peak_rss_mb()},
                                {"device_memory_mb", double(r.device_bytes) / (1 << 20)}}
                               .dump());
        return;
    }
    fmt::print("{:<10} {:>5} {:>5} {:>6} {:>22} {:>9} {:>9} {:>13} {:>9} {:>13} {:>9}\n", "model",
               "batch", "size", "ranks", "img/s median (min-max)", "GFLOP/s", "% of peak",
               "net % of busy", "sent/step", "step 1 after", "peak RSS");
    fmt::print(
        "{:<10} {:>5} {:>5} {:>6} {:>22} {:>9.0f} {:>9.0f} {:>13} {:>9} {:>11.2f} s {:>6.0f} MB\n",
        r.model, r.batch, r.size, r.world,
        fmt::format("{:.2f} ({:.2f}-{:.2f})", middle, *least, *most), r.gflops, percent,
        fmt::format("{:.0f} of {:.0f}", 100 * r.net_wait, 100 * r.net_busy),
        fmt::format("{:.1f} MB", r.bytes_a_step / 1e6), r.start_seconds, peak_rss_mb());
}

}  // namespace convoy
