// bench_train.cpp — steps without input pipeline: training, forward alone, or asleep.
#include <algorithm>
#include <optional>
#include <thread>

#include "data/order.h"
#include "src/base/terminal.h"
#include "src/bench/bench.h"
#include "src/run/usage.h"
#include "src/session/job_setup.h"
#include "src/step/input.h"
#include "src/step/trainer.h"

namespace convoy {
namespace {

// Forward, gradient of x and gradient of w cost the same; the first layer needs no gradient of x.
double train_flops(const Model& model) {
    double flops = 3 * model.forward_flops();
    for (const LayerLine& line : model.lines())
        if (line.flops > 0) return flops - line.flops;
    return flops;
}

// Sleeps at the end of each layer's span, in proportion to its operations without those of the
// spans in it. It sleeps until a point in time, not for a duration, so late wake-ups do not add up;
// the time between two spans counts too.
class Sleeper final : public SpanSink {
 public:
    void begin() override { inner_.push_back(0); }
    void end(const TraceName& name, int64_t, double amount) noexcept override {
        const double inner = inner_.back(), all = name.amount == kGflops ? amount : inner;
        const std::chrono::duration<double> seconds(flop_seconds * std::max(all - inner, 0.0));
        inner_.pop_back();
        if (!inner_.empty()) inner_.back() += all;
        wake_ += Clock::now() - ended_ + std::chrono::duration_cast<Clock::duration>(seconds);
        std::this_thread::sleep_until(wake_);
        ended_ = Clock::now();
    }
    double flop_seconds = 0;

 private:
    std::vector<double> inner_;  // operations of the ended spans in each open span
    Clock::time_point wake_ = Clock::now(), ended_ = wake_;
};

// Steps of training, or of forward passes alone, as eval and predict run them.
class TrainBench {
 public:
    explicit TrainBench(JobSession& job)
        : job_(job),
          shares_(size_t(job.world()), 1.0),
          own_(share_of(config_.batch, shares_, job.rank()).size()),
          model_(model_text(config_.model), model_options(config_, class_count(config_)),
                 *backend_) {
        model_.plan(std::max(int(own_), 1), /*training=*/!config_.forward);
        batch_ = random_batch(*backend_, config_.batch, shares_, job.rank(), model_.input(),
                              class_count(config_), uint64_t(config_.seed));
        sleeper_.flop_seconds =
            config_.compute / double(std::ranges::max(batch_.wanted_by)) / train_flops(model_);
        if (config_.forward) {
            input_.emplace(*backend_, model_);
            return;
        }
        optimizer_.emplace(config_, model_.params(), *backend_);
        TrainerOptions options(config_);
        if (config_.compute > 0) {
            options.tracer = &job.tracer, options.track = job.tracer.track("trainer", 1, 256);
            options.device = &sleeper_, options.last_traced = INT64_MAX;
        }
        trainer_.emplace(options, *backend_, communicator_, model_, *optimizer_, job.stop);
    }

    // Returns the signal that ended it early, else 0.
    int run(Clock::time_point started) {
        if (const int signal = measure(started)) return signal;
        if (config_.graph == GraphMode::kOn && !config_.json && !no_graph().empty())
            job_.log.notice("CONVOY_GRAPH=on: steps run op by op nevertheless, ", no_graph());
        print();
        return 0;
    }

 private:
    // Why steps run op by op; "": they are replayed as a CUDA graph.
    std::string no_graph() {
        if (!trainer_ || config_.compute > 0) return "these are not whole training steps";
        if (config_.graph == GraphMode::kOff) return "CONVOY_GRAPH=off";
        if (no_graph_.empty()) no_graph_ = why_no_graph(*backend_, communicator_.world());
        if (no_graph_.empty()) no_graph_ = trainer_->take_notice();
        return no_graph_;
    }

    // Times groups of H steps (--sync average:H). Returns as run().
    int measure(Clock::time_point started) {
        const ProgressBar bar(job_.log, "timing steps", 0);
        const auto waited = [&] { return trainer_ ? trainer_->seconds_waited_for_network() : 0; };
        const int groups = config_.steps > 0 ? int(config_.steps) : 5, H = config_.sync_every;
        // The input has two buffers. A step is recorded when it uses its buffer the second time.
        const int warm_up = no_graph().empty() ? 4 : 1;
        double total = 0, waited_before = 0, busy_before = 0, sent_before = 0;
        start_seconds_ = seconds_since(started);
        for (int group = -warm_up; group < groups; ++group) {
            if (group <= 0) {
                waited_before = waited(), busy_before = communicator_.seconds_busy();
                sent_before = double(communicator_.bytes_sent());
            }
            const auto begin = Clock::now();
            for (int i = 1; i <= H; ++i) {
                step(/*last=*/i == H);
                if (number_ == 1) first_step_seconds_ = seconds_since(started);
            }
            const double seconds = seconds_since(begin);
            if (const int signal = trainer_ ? trainer_->stop_agreed() : job_.stop()) return signal;
            if (group < 0) continue;
            total += seconds;
            speeds_.push_back(double(config_.batch * H) / seconds);
        }
        net_wait_ = (waited() - waited_before) / total;
        net_busy_ = (communicator_.seconds_busy() - busy_before) / total;
        bytes_a_step_ = (double(communicator_.bytes_sent()) - sent_before) / (groups * H);
        return 0;
    }

    void print() {
        const auto [speed, least, most] = spread_of(speeds_);
        double gflops = 0, peak = 0;  // of this rank
        if (config_.compute == 0) {
            const double flops = config_.forward ? model_.forward_flops() : train_flops(model_);
            gflops = speed / double(config_.batch) * double(own_) * flops / 1e9;
            peak = backend_->measure_peak_gflops();
        }
        if (job_.rank() != 0) return;
        const size_t uploaded = batch_.bytes ? size_t(own_) * model_.input().elems() : 0;
        Table(config_.json, stdout)
            .row({{"bench", "train"},
                  {"model", config_.model, "model"},
                  {"batch", config_.batch, "batch"},
                  {"size", input_size_text(model_.input()), "size"},
                  {"world", communicator_.world(), "ranks"},
                  {"threads", backend_->threads()},
                  {"images_per_second", speed, "img/s", "{:.2f}"},
                  {"images_per_second_min", least, "min", "{:.2f}"},
                  {"images_per_second_max", most, "max", "{:.2f}"},
                  {"gflops", gflops, "GFLOP/s", "{:.0f}"},
                  {"percent_of_peak", peak > 0 ? 100 * gflops / peak : 0},
                  {"net_wait", net_wait_},
                  {"", 100 * net_wait_, "net wait", "{:.0f} %"},
                  {"net_busy", net_busy_},
                  {"", 100 * net_busy_, "net busy", "{:.0f} %"},
                  {"bytes_a_step", bytes_a_step_},
                  {"", bytes_a_step_ / 1e6, "sent/step", "{:.1f} MB"},
                  {"start_seconds", start_seconds_, "step 1 after", "{:.2f} s"},
                  {"first_step_seconds", first_step_seconds_},
                  {"upload_gb_per_second", 1e-9 * double(uploaded) * speed / double(config_.batch)},
                  {"graph", no_graph().empty()},
                  {"peak_rss_mb", std::max(0.0, memory_bytes("VmHWM")) / (1 << 20), "peak RSS",
                   "{:.0f} MB"},
                  {"device_memory_mb", double(backend_->device_bytes()) / (1 << 20)}});
    }

    // `last`: of the steps after which ranks average, with --sync average.
    void step(bool last) {
        const int64_t number = number_++;
        if (trainer_) {
            StepResult result = trainer_->step(batch_, {0, 0, number}, 1e-4, &batch_);
            trainer_->meet(result, {0, 0, number_}, /*must=*/last && !result.of_all);
        } else {
            model_.forward(input_->take(batch_),
                           {false, {}, batch_.samples, {}, /*refresh=*/number == 0});
            backend_->synchronize();
        }
    }

    JobSession& job_;
    const Config& config_ = job_.config;
    Communicator& communicator_ = job_.communicator();
    const std::vector<double> shares_;
    const int64_t own_;  // images of this rank per step
    Sleeper sleeper_;
    const std::unique_ptr<Backend> backend_ = config_.compute > 0
                                                  ? make_backend("cpu",
                                                                 {1, ConvMethod::kAuto,
                                                                  config_.precision, /*idle=*/true})
                                                  : make_backend(config_);
    Model model_;
    Batch batch_;
    std::optional<Optimizer> optimizer_;
    std::optional<Trainer> trainer_;
    std::optional<Input> input_;  // without trainer
    int64_t number_ = 0;
    std::string no_graph_;
    // Measured.
    std::vector<double> speeds_;          // images per second of all ranks, of each timed group
    double net_wait_ = 0, net_busy_ = 0;  // parts of the time
    double bytes_a_step_ = 0;             // sent by this rank
    double start_seconds_ = 0, first_step_seconds_ = 0;  // until step 1 began, and ended
};

}  // namespace

int bench_train_in_job(JobSession& job) {
    const Clock::time_point started = Clock::now();
    job.take_settings_of_rank0();
    choose_device(job);
    const int signal = TrainBench(job).run(started);
    job.finish();
    return signal ? 128 + signal : 0;
}

}  // namespace convoy
