// bench_kernels.cpp — times each op of real training steps of the built-in models.
#include <algorithm>
#include <map>

#include "net/ring/null_communicator.h"
#include "src/base/trace.h"
#include "src/bench/bench.h"
#include "src/bench/op_backend.h"
#include "src/job/job_setup.h"
#include "src/train/input.h"
#include "src/train/trainer.h"

namespace convoy {

namespace {

constexpr int kTimedClasses = 1000;
// With these batches the largest layer is a few hundred MB.
const std::pair<const char*, int> kTimedModels[] = {
    {"tiny", 64},     {"alexnet", 64},   {"vgg16", 8},        {"resnet18", 32},
    {"resnet50", 16}, {"googlenet", 16}, {"mobilenet_v2", 32}};
constexpr TraceName kTimedOp{"op", "op", "row"};
constexpr size_t kMostCalls = 1 << 14;  // ops of a step

struct OpRow {
    Op op;
    int layers = 0;               // calls per step
    std::vector<double> seconds;  // of each call
    std::vector<double> parts;    // of the machine's limit
};

// First lists the ops of a step and runs only those that match the filter. So a model without such
// ops costs little, and a profiler that stops after a few launches sees them. Then times these ops.
class TimedBackend final : public OpBackend {
 public:
    TimedBackend(Backend& device, std::string model, std::string filter)
        : OpBackend(device), device_(device), model_(std::move(model)), filter_(filter) {}

    void list_next_step() { phase_ = Phase::kList; }
    void time_next_step() {
        phase_ = Phase::kTime;
        limits_[0] = bytes_per_second(), limits_[1] = device_.measure_peak_gflops() * 1e9;
        track_ = std::make_unique<Track>("ops", 0, kMostCalls);
        sink_ = device_.trace(track_.get(), &uploads_, &uploads_);
    }
    // After the step: takes the device's own times, if it runs ops after the calls.
    void end_step() {
        if (sink_) {
            device_.synchronize();
            bool lost = false;
            for (const TraceEntry& entry : track_->copy(lost))
                if (entry.name == &kTimedOp)
                    note(rows_[size_t(entry.number)], 1e-9 * double(entry.duration));
            sink_ = device_.trace(nullptr, nullptr, nullptr);
        }
        phase_ = Phase::kPass;
    }
    const std::vector<OpRow>& rows() const { return rows_; }

    void call(const Op& op, const std::function<void()>& run) override {
        if (phase_ == Phase::kPass) return run();
        const std::string name = cat(model_, " ", op.name, " ", op.shapes);
        if (phase_ == Phase::kList) {
            if (name.find(filter_) == name.npos) return;
            const auto [at, is_new] = numbers_.try_emplace(name, rows_.size());
            if (is_new) rows_.push_back({op, 0, {}, {}});
            ++rows_[at->second].layers;
            return run();
        }
        const auto at = numbers_.find(name);
        if (at == numbers_.end()) return run();
        if (sink_) {
            sink_->begin();
            run();
            return sink_->end(kTimedOp, int64_t(at->second), 0);
        }
        const auto begin = Clock::now();
        run();
        device_.synchronize();
        note(rows_[at->second], seconds_since(begin));
    }

 private:
    enum class Phase { kPass, kList, kTime };

    void note(OpRow& row, double seconds) {
        const bool computes = row.op.flops > 0;
        row.seconds.push_back(seconds);
        row.parts.push_back((computes ? row.op.flops : row.op.bytes) / seconds / limits_[computes]);
    }
    // The machine's bandwidth: adding two arrays in memory (on a GPU: copying one).
    double bytes_per_second() {
        // 32 MB: far more than a core's own cache; 128 MB: more than a GPU's.
        const bool host = device_.host_visible();
        const int elems = host ? 8 << 20 : 32 << 20, repeats = host ? 1 : 4;
        if (!a_.data) {
            for (Tensor* one : {&a_, &b_}) *one = device_.alloc({1, 1, 1, elems}, Type::kFloat32);
            device_.fill(b_.floats(), size_t(elems), 1);
        }
        device_.synchronize();
        const auto begin = Clock::now();
        for (int i = 0; i < repeats; ++i)
            host ? device_.add(a_, b_) : device_.copy(a_.floats(), b_.floats(), size_t(elems));
        device_.synchronize();
        return (host ? 12.0 : 8.0) * elems * repeats / seconds_since(begin);
    }

    Backend& device_;
    const std::string model_, filter_;
    Phase phase_ = Phase::kPass;
    std::vector<OpRow> rows_;  // in the order of a step
    std::map<std::string, size_t> numbers_;
    double limits_[2] = {};  // bytes, operations per second; renewed in each step
    Tensor a_, b_;
    std::unique_ptr<Track> track_;
    Track uploads_{"copies", 1, 8};
    SpanSink* sink_ = nullptr;  // null: the host's clock times the calls
};

void print_op(Table& table, const std::string& model, const OpRow& row) {
    const Spread time = spread_of(row.seconds);
    const double work = row.op.flops > 0 ? row.op.flops : row.op.bytes;
    table.row({{"model", model, "model", "{:<8}"},
               {"op", std::string(row.op.name), "op", "{:<21}"},
               {"shapes", row.op.shapes, "shapes", "{:<41}"},
               {"layers", row.layers, "layers", "{:6}"},
               {"milliseconds", 1e3 * time.median, "ms", "{:9.3f}"},
               {"milliseconds_min", 1e3 * time.least},
               {"milliseconds_max", 1e3 * time.most},
               {"rate", work / time.median / 1e9, "rate", "{:7.1f}"},
               {"unit", std::string(row.op.flops > 0 ? "GFLOP/s" : "GB/s"), "", "{:<7}"},
               {"percent", 100 * median(row.parts), "of limit", "{:.0f} %"}});
}

// One row per op, over all layers of a model, ordered by the op's share of a step, largest first.
void print_sums(const std::vector<OpRow>& rows, const std::string& model, std::FILE* out) {
    struct Sum {
        int layers = 0;
        double seconds = 0, at_limit = 0;
    };
    std::map<std::string, Sum> sums;
    for (const OpRow& row : rows) {
        Sum& sum = sums[row.op.name];
        const double seconds = row.layers * median(row.seconds);
        sum.layers += row.layers, sum.seconds += seconds;
        sum.at_limit += seconds * median(row.parts);
    }
    std::vector<std::pair<std::string, Sum>> all(sums.begin(), sums.end());
    std::ranges::sort(all, std::greater(), [](const auto& one) { return one.second.seconds; });
    for (const auto& [op, sum] : all)
        fmt::print(out, "{:<8}  {:<21}  {:<41}  {:6}  {:9.3f} ms  {:.0f} %\n", model, op,
                   "all layers", sum.layers, 1e3 * sum.seconds, 100 * sum.at_limit / sum.seconds);
}

}  // namespace

int bench_kernels(const Config& given, int batch, double seconds, std::FILE* out) {
    int rows = 0;
    Table table(given.json, out);
    const auto names = [&](const auto& timed) {
        return given.filter.find(timed.first) != std::string::npos;
    };
    const bool names_model = std::ranges::any_of(kTimedModels, names);
    for (const auto& timed : kTimedModels) {
        if (names_model && !names(timed)) continue;
        Config config = given;
        config.model = timed.first, config.batch = batch ? batch : timed.second;
        // A backend for each model: its memory is given back in between.
        const auto device = make_backend(config);
        TimedBackend backend(*device, config.model, config.filter);
        Model model(model_text(config.model), model_options(config, kTimedClasses), backend);
        model.plan(int(config.batch), /*training=*/true);
        Optimizer optimizer(config, model.params(), backend);
        NullCommunicator alone(0, 1);
        Trainer trainer(TrainerOptions(config), backend, alone, model, optimizer, [] { return 0; });
        const Batch images = random_batch(backend, config.batch, std::vector<double>{1}, 0,
                                          model.input(), kTimedClasses, uint64_t(config.seed));
        const auto step = [&] {
            trainer.step(images, {}, /*lr=*/0);
            backend.end_step();
        };
        backend.list_next_step();
        step();
        if (backend.rows().empty()) continue;
        if (!config.json && rows == 0)
            fmt::print(out, "{}; limit {:.0f} GFLOP/s ({})\n", backend.description(),
                       backend.measure_peak_gflops(),
                       config.precision == Precision::kBf16 ? "products of bf16, from L1"
                                                            : "multiply-adds on registers");
        step();  // the ops that the first step left out allocate scratch memory
        const auto begin = Clock::now();
        for (int timed_steps = 0; timed_steps < 3 || seconds_since(begin) < seconds;
             ++timed_steps) {
            backend.time_next_step();
            step();
        }
        for (const OpRow& row : backend.rows()) print_op(table, config.model, row);
        rows += int(backend.rows().size());
        if (!config.json && backend.rows().size() > 1)
            print_sums(backend.rows(), config.model, out);
    }
    return rows;
}

}  // namespace convoy
