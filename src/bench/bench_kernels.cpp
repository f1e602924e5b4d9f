// bench_kernels.cpp — times each layer of real training steps of the built-in models, by the spans
// that a trace of these steps has (src/base/trace.h).
#include <algorithm>
#include <map>

#include "src/base/trace.h"
#include "src/bench/bench.h"
#include "src/session/job_setup.h"
#include "src/step/input.h"
#include "src/step/trainer.h"
namespace convoy {

namespace {

constexpr int kTimedClasses = 1000;
// With these batches the largest layer is a few hundred MB.
const std::pair<const char*, int> kTimedModels[] = {
    {"tiny", 64},     {"alexnet", 64},   {"vgg16", 8},        {"resnet18", 32},
    {"resnet50", 16}, {"googlenet", 16}, {"mobilenet_v2", 32}};
constexpr size_t kMostSpans = 1 << 13;  // of a step

// A pass of layers that are alike.
struct LayerRow {
    std::string op, shapes, pass;
    double bytes;                      // that a call reads and writes at least
    bool computes = false;             // else it is bound by memory
    double flops = 0;                  // of a call
    int layers = 0;                    // calls per step
    std::vector<double> seconds = {};  // of each call, without those of the layers inside it
    std::vector<double> parts = {};    // of the machine's limit

    std::string name() const { return cat(op, " ", shapes, pass.empty() ? "" : " ", pass); }
};

// One model in training.
class TimedModel {
 public:
    explicit TimedModel(const Config& its_config)
        : config_(its_config),
          backend_(make_backend(config_)),
          model_(model_text(config_.model), model_options(config_, kTimedClasses), *backend_) {
        const LayerTrace trace = model_.trace(tracer_, host_);
        for (const LayerLine& line : model_.lines())
            add(trace.names[line.layer], line, "forward", 1, 1);
        const double logits = double(config_.batch) * kTimedClasses;
        add(kTraceLoss, {"loss", cat(config_.batch, "x1x1x", kTimedClasses), "", 8 * logits});
        // Reads x, dy and w, writes dx, adds to dw.
        for (const LayerLine& line : model_.lines())
            add(trace.names[line.layer + trace.layers], line, "backward", 2, 3);
        const size_t trained = model_.params().trained_elems;  // read once more for NaN
        add(kTraceUpdate, {"update", cat(trained, " parameters"), "", 6 * 4.0 * double(trained)});
    }

    const std::vector<LayerRow>& rows() const { return rows_; }
    const Backend& backend() const { return *backend_; }
    double peak() { return backend_->measure_peak_gflops(); }

    // At least three steps after one that allocates scratch memory.
    void run(double seconds) {
        model_.plan(int(config_.batch), /*training=*/true);
        Optimizer optimizer(config_, model_.params(), *backend_);
        Communicator alone;
        TrainerOptions options(config_);
        options.config.graph = GraphMode::kOff;  // a recorded step is one span
        options.tracer = &tracer_, options.track = host_, options.last_traced = INT64_MAX;
        if (!backend_->host_visible())
            options.device = backend_->trace(&device_, &copies_, &copies_);
        Trainer trainer(options, *backend_, alone, model_, optimizer, [] { return 0; });
        const Batch images = random_batch(*backend_, config_.batch, std::vector<double>{1}, 0,
                                          model_.input(), kTimedClasses, uint64_t(config_.seed));
        trainer.step(images, {}, /*lr=*/0);
        const auto begin = Clock::now();
        for (int steps = 0; steps < 3 || seconds_since(begin) < seconds; ++steps) {
            memory_limit_ = bytes_per_second(), compute_limit_ = peak() * 1e9;
            const int64_t since = trace_ns(Clock::now());
            trainer.step(images, {}, /*lr=*/0);
            backend_->synchronize();
            note(since, /*first=*/steps == 0);
        }
        backend_->trace(nullptr, nullptr, nullptr);
    }

 private:
    void add(const TraceName& span, const LayerLine& line, const char* pass, int inputs,
             int weights) {
        Shape x = line.input;
        x.N = int(config_.batch);
        const double activations =
            double(size_t(inputs) * line.input.elems() + line.output.elems()) * x.N *
            double(bytes_of(backend_->activations()));
        add(span, {line.what, x.text(), pass, activations + 4.0 * weights * double(line.params),
                   line.flops > 0});
    }
    void add(const TraceName& span, LayerRow row) {
        const std::string name = row.name();
        if (cat(config_.model, " ", name).find(config_.filter) == std::string::npos) return;
        const auto [at, is_new] = numbers_.try_emplace(name, rows_.size());
        if (is_new) rows_.push_back(std::move(row));
        row_of_[&span] = at->second;
    }

    // Takes the spans of a step. A span comes after those inside it, whose time is taken off.
    void note(int64_t since, bool first) {
        bool lost = false;
        std::vector<TraceEntry> inside;  // not yet taken off
        for (const TraceEntry& e : (backend_->host_visible() ? host_ : &device_)->copy(lost)) {
            if (e.begin < since) continue;
            int64_t own = e.duration;
            for (; !inside.empty() && inside.back().begin >= e.begin; inside.pop_back())
                own -= inside.back().duration;
            inside.push_back(e);
            const auto at = row_of_.find(e.name);
            if (at == row_of_.end()) continue;
            LayerRow& row = rows_[at->second];
            if (row.computes) row.flops = e.amount;
            row.layers += first;
            row.seconds.push_back(1e-9 * double(own));
            row.parts.push_back(std::max(row.flops / compute_limit_, row.bytes / memory_limit_) /
                                row.seconds.back());
        }
    }

    // The machine's bandwidth: adding two arrays in memory (on a GPU: copying one).
    double bytes_per_second() {
        // 32 MB: far more than a core's own cache; 128 MB: more than a GPU's.
        const bool host = backend_->host_visible();
        const int elems = host ? 8 << 20 : 32 << 20, repeats = host ? 1 : 4;
        if (!a_.data) {
            for (Tensor* one : {&a_, &b_}) *one = backend_->alloc({1, 1, 1, elems}, Type::kFloat32);
            backend_->fill(b_.floats(), size_t(elems), 1);
        }
        backend_->synchronize();
        const auto begin = Clock::now();
        for (int i = 0; i < repeats; ++i)
            host ? backend_->add(a_, b_) : backend_->copy(a_.floats(), b_.floats(), size_t(elems));
        backend_->synchronize();
        return (host ? 12.0 : 8.0) * elems * repeats / seconds_since(begin);
    }

    const Config config_;
    const std::unique_ptr<Backend> backend_;
    Model model_;
    Tracer tracer_;
    Track* const host_ = tracer_.track("host", 0, kMostSpans);
    Track device_{"device", 1, kMostSpans}, copies_{"copies", 2, 8};
    std::vector<LayerRow> rows_;  // in the order of a step
    std::map<std::string, size_t> numbers_;
    std::map<const TraceName*, size_t> row_of_;
    double memory_limit_ = 0, compute_limit_ = 0;  // bytes, operations per second
    Tensor a_, b_;
};

void print_row(Table& table, const std::string& model, const LayerRow& row) {
    const Spread time = spread_of(row.seconds);
    const double work = row.computes ? row.flops : row.bytes;
    table.row({{"model", model, "model", "{:<8}"},
               {"op", row.op, "layer", "{:<36}"},
               {"shapes", row.shapes, "input", "{:<17}"},
               {"pass", row.pass, "pass", "{:<8}"},
               {"layers", row.layers, "layers", "{:6}"},
               {"milliseconds", 1e3 * time.median, "ms", "{:9.3f}"},
               {"milliseconds_min", 1e3 * time.least},
               {"milliseconds_max", 1e3 * time.most},
               {"rate", work / time.median / 1e9, "rate", "{:7.1f}"},
               {"unit", std::string(row.computes ? "GFLOP/s" : "GB/s"), "", "{:<7}"},
               {"percent", 100 * median(row.parts), "of limit", "{:.0f} %"}});
}

// One row for each kind of layer and pass, the largest part of a step first.
void print_sums(const std::vector<LayerRow>& rows, const std::string& model, std::FILE* out) {
    struct Sum {
        int layers = 0;
        double seconds = 0, at_limit = 0;
    };
    std::map<std::string, Sum> sums;
    for (const LayerRow& row : rows) {
        Sum& sum = sums[cat(split(row.op, ' ')[0], " ", row.pass)];
        const double seconds = row.layers * median(row.seconds);
        sum.layers += row.layers, sum.seconds += seconds;
        sum.at_limit += seconds * median(row.parts);
    }
    std::vector<std::pair<std::string, Sum>> all(sums.begin(), sums.end());
    std::ranges::sort(all, std::greater(), [](const auto& one) { return one.second.seconds; });
    for (const auto& [op, sum] : all)
        fmt::print(out, "{:<8}  {:<65}  {:6}  {:9.3f} ms  {:.0f} %\n", model, "all of " + op,
                   sum.layers, 1e3 * sum.seconds, 100 * sum.at_limit / sum.seconds);
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
        TimedModel model(config);
        if (model.rows().empty()) continue;
        if (!config.json && rows == 0)
            fmt::print(out, "{}; limit {:.0f} GFLOP/s (multiply-adds in registers)\n",
                       model.backend().description(), model.peak());
        model.run(seconds);
        for (const LayerRow& row : model.rows()) print_row(table, config.model, row);
        rows += int(model.rows().size());
        if (!config.json && model.rows().size() > 1) print_sums(model.rows(), config.model, out);
    }
    return rows;
}

}  // namespace convoy
