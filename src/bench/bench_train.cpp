// bench_train.cpp — steps without input pipeline: training, forward alone, or asleep.
#include <algorithm>
#include <fstream>
#include <memory>
#include <ranges>
#include <thread>

#include "data/order.h"
#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/bench/bench.h"
#include "src/bench/op_backend.h"
#include "src/job/device_choice.h"
#include "src/job/job_setup.h"
#include "src/train/input.h"
#include "src/train/trainer.h"

namespace convoy {
namespace {

// Forward, gradient of x and gradient of w cost the same; the first layer needs no gradient of x.
double train_flops(const Model& model) {
    double flops = 3 * model.forward_flops();
    for (const LayerLine& line : model.lines())
        if (line.flops > 0) return flops - line.flops;
    return flops;
}

// Each op sleeps in proportion to its operations instead of computing. It sleeps until a point in
// time, not for a duration, so late wake-ups do not add up; the time between two ops counts too.
class SleepingBackend final : public OpBackend {
 public:
    using OpBackend::OpBackend;
    void call(const Op& op, const std::function<void()>&) override {
        const std::chrono::duration<double> seconds(flop_seconds * op.flops);
        wake_ += Clock::now() - ended_ + std::chrono::duration_cast<Clock::duration>(seconds);
        std::this_thread::sleep_until(wake_);
        ended_ = Clock::now();
    }
    double flop_seconds = 0;

 private:
    Clock::time_point wake_ = Clock::now(), ended_ = wake_;
};

// What a step of the bench does.
class Work {
 public:
    virtual ~Work() = default;
    // `last`: of the steps after which ranks average, with --sync average.
    virtual void step(const Batch& batch, int64_t number, bool last) = 0;
    virtual double seconds_waited() const { return 0; }  // for the network, since it was made
    // The signal on which all ranks stop after this step, or 0; `own` is what this one has seen.
    virtual int stop_agreed(int own) const { return own; }
    virtual std::string take_graph_failure() { return {}; }
    virtual void record(bool) {}  // whether steps are traced from now on
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
        const Tensor logits =
            model_.forward(input_.take(batch), {false, {}, batch.samples, {}, refresh_});
        refresh_ = false;
        backend_.softmax_cross_entropy(logits, batch.labels, 0, {nullptr, logits.shape()}, sums_);
        backend_.synchronize();
    }

 private:
    Model& model_;
    Backend& backend_;
    float* sums_;
    Input input_;
    bool refresh_ = true;
};

class Training : public Work {
 public:
    Training(const Config& config, Model& model, Backend& backend, Communicator& communicator,
             const Stop& stop)
        : backend_(backend),
          optimizer_(config, model.params(), backend),
          options_(config),
          trainer_((options_.tracer = &tracer_, options_.track = track_, options_), backend,
                   communicator, model, optimizer_, stop) {}
    ~Training() override { record(false); }
    void step(const Batch& batch, int64_t number, bool last) override {
        StepResult result = trainer_.step(batch, {0, 0, number}, 1e-4, &batch);
        trainer_.meet(result, {0, 0, number + 1}, /*must=*/last && !result.of_all);
    }
    double seconds_waited() const override { return trainer_.seconds_waited_for_network(); }
    int stop_agreed(int) const override { return trainer_.stop_agreed(); }
    std::string take_graph_failure() override { return trainer_.take_graph_failure(); }
    void record(bool on) override {
        SpanSink* const device =
            on ? backend_.trace(tracer_.track("operations", 2, 256), tracer_.track("uploads", 3, 8),
                                tracer_.track("downloads", 4, 256))
               : backend_.trace(nullptr, nullptr, nullptr);
        trainer_.record(on ? track_ : nullptr, device);
    }

 private:
    Backend& backend_;
    Optimizer optimizer_;
    Tracer tracer_;
    Track* const track_ = tracer_.track("trainer", 1, 4096);
    TrainerOptions options_;
    Trainer trainer_;
};

struct Measured {
    std::vector<double> images_per_second;  // of all ranks together, one a timed group
    std::vector<double> recording;      // of two groups: time with a trace by time without, less 1
    double net_wait = 0, net_busy = 0;  // parts of the time
    double bytes_a_step = 0;            // sent by this rank
    double start_seconds = 0, first_step_seconds = 0;  // until the first step began, and ended
    int signal = 0;                                    // that ended it early, else 0
};

// Times groups of H steps (--sync average:H), after `warm_up` groups.
Measured measure(const Config& config, int warm_up, Work& work, const Batch& batch,
                 const Communicator& communicator, const Stop& stop, Clock::time_point started) {
    const int groups = config.steps > 0 ? int(config.steps) : 5;
    Measured result;
    double total = 0, waited = 0, busy = 0, sent = 0, last = 0;
    int64_t number = 0;
    result.start_seconds = seconds_since(started);
    for (int group = 1 - warm_up; group <= groups && !result.signal; ++group) {
        if (group <= 1) {  // counted from here on
            waited = work.seconds_waited(), busy = communicator.seconds_busy();
            sent = double(communicator.bytes_sent());
        }
        work.record(group % 2 != 0);
        const auto begin = Clock::now();
        for (int i = 1; i <= config.sync_every; ++i) {
            work.step(batch, number++, i == config.sync_every);
            if (number == 1) result.first_step_seconds = seconds_since(started);
        }
        const double seconds = seconds_since(begin);
        result.signal = work.stop_agreed(stop());
        if (group <= 0) continue;
        total += seconds;
        if (group % 2 == 0) result.recording.push_back(last / seconds - 1);
        last = seconds;
        result.images_per_second.push_back(double(config.batch * config.sync_every) / seconds);
    }
    result.net_wait = (work.seconds_waited() - waited) / total;
    result.net_busy = (communicator.seconds_busy() - busy) / total;
    result.bytes_a_step =
        (double(communicator.bytes_sent()) - sent) / (double(groups) * config.sync_every);
    return result;
}

// getrusage() would also count memory from before exec(), which is that of a large parent.
double peak_rss_mb() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
        if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) / 1024;
    return 0;
}

void print_result(const Config& config, const Measured& m, const Model& model, Backend& backend,
                  const Communicator& communicator, int64_t own_images, bool graph) {
    const auto [speed, least, most] = spread_of(m.images_per_second);
    double gflops = 0, peak = 0;  // of this rank
    if (config.compute == 0) {
        const double flops = config.forward ? model.forward_flops() : train_flops(model);
        gflops = speed / double(config.batch) * double(own_images) * flops / 1e9;
        peak = backend.measure_peak_gflops();
    }
    if (communicator.rank() != 0) return;
    const double percent = peak > 0 ? 100 * gflops / peak : 0;
    Table(config.json, stdout)
        .row({{"bench", "train"},
              {"model", config.model, "model"},
              {"batch", config.batch, "batch"},
              {"size", input_size_text(model.input()), "size"},
              {"classes", class_count(config)},
              {"world", communicator.world(), "ranks"},
              {"threads", backend.threads()},
              {"images_per_second", speed, "img/s", "{:.2f}"},
              {"images_per_second_min", least, "min", "{:.2f}"},
              {"images_per_second_max", most, "max", "{:.2f}"},
              {"gflops", gflops, "GFLOP/s", "{:.0f}"},
              {"peak_gflops", peak},
              {"percent_of_peak", percent},
              {"net_wait", m.net_wait},
              {"", 100 * m.net_wait, "net wait", "{:.0f} %"},
              {"net_busy", m.net_busy},
              {"", 100 * m.net_busy, "net busy", "{:.0f} %"},
              {"bytes_a_step", m.bytes_a_step},
              {"", m.bytes_a_step / 1e6, "sent/step", "{:.1f} MB"},
              {"start_seconds", m.start_seconds, "step 1 after", "{:.2f} s"},
              {"first_step_seconds", m.first_step_seconds},
              {"graph", graph},
              {"recording_cost", m.recording.empty() ? 0 : median(m.recording)},
              {"peak_rss_mb", peak_rss_mb(), "peak RSS", "{:.0f} MB"},
              {"device_memory_mb", double(backend.device_bytes()) / (1 << 20)}});
}

}  // namespace

int bench_train(const Config& config, Communicator& communicator, Log& log, const Stop& stop,
                Clock::time_point started) {
    const int classes = class_count(config), world = communicator.world();
    const auto device = make_backend(config);
    SleepingBackend sleeping(*device);
    Backend& backend = config.compute > 0 ? sleeping : *device;
    std::string no_graph = config.graph == GraphMode::kOff ? "CONVOY_GRAPH=off"
                           : config.forward || config.compute > 0
                               ? "these are not whole training steps"
                               : why_no_graph(backend, world);
    Model model(model_text(config.model), model_options(config, classes), backend);
    const std::vector<double> shares(size_t(world), 1.0);
    const int64_t share = share_of(config.batch, shares, communicator.rank()).size();
    model.plan(std::max(int(share), 1), /*training=*/!config.forward);
    const Batch batch = random_batch(backend, config.batch, shares, communicator.rank(),
                                     model.input(), classes, uint64_t(config.seed));
    sleeping.flop_seconds =
        config.compute / double(std::ranges::max(batch.wanted_by)) / train_flops(model);

    std::unique_ptr<Work> work;
    if (config.forward)
        work = std::make_unique<Forward>(model, backend);
    else
        work = std::make_unique<Training>(config, model, backend, communicator, stop);
    // The input has two buffers. A step is recorded when it uses its buffer for the second
    // time.
    const int warm_up = no_graph.empty() ? 4 : 1;
    log.draw(0, "timing steps");
    const Measured m = measure(config, warm_up, *work, batch, communicator, stop, started);
    log.erase();
    if (m.signal) return m.signal;
    if (const std::string why = work->take_graph_failure(); !why.empty()) no_graph = why;
    if (config.graph == GraphMode::kOn && !config.json && !no_graph.empty())
        log.notice("CONVOY_GRAPH=on: steps run op by op nevertheless, ", no_graph);

    print_result(config, m, model, *device, communicator, share, no_graph.empty());
    return 0;
}

}  // namespace convoy
