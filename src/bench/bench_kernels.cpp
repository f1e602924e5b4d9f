// bench_kernels.cpp — see bench_kernels.h.
#include "src/bench/bench_kernels.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "src/base/clock.h"
#include "src/base/table.h"

namespace convoy {

namespace {

// Batches with which the largest layer is a few hundred MB.
const std::pair<const char*, int> kTimedModels[] = {
    {"tiny", 64},     {"alexnet", 64},   {"vgg16", 8},        {"resnet18", 32},
    {"resnet50", 16}, {"googlenet", 16}, {"mobilenet_v2", 32}};

double seconds_of(Backend& backend, const std::function<void(Backend&)>& run, int repeats = 1) {
    const auto begin = Clock::now();
    for (int i = 0; i < repeats; ++i) run(backend);
    backend.synchronize();
    return seconds_since(begin) / repeats;
}

class RowTimer {
 public:
    // cublas: may be null.
    RowTimer(Backend& backend, Backend* cublas, double seconds, Table& table)
        : backend_(backend), cublas_(cublas), seconds_(seconds), table_(table) {}

    // The limit, and cuBLAS, are measured after each run, so that other load on the machine weighs
    // on all alike.
    // layers: how many of the model are such a row.
    void time(const KernelRow& row, int layers) {
        const bool beside = cublas_ && row.by_cublas;
        const double work = row.flops > 0 ? row.flops : row.bytes;
        std::vector<double> times, parts, theirs;
        seconds_of(backend_, row.run);  // the first run allocates scratch
        if (beside) seconds_of(*cublas_, row.by_cublas);
        // On a GPU several runs at once: a launch takes the host some microseconds, which the GPU
        // spends on the run before.
        const double once = backend_.host_visible() ? 1 : seconds_of(backend_, row.run);
        const int repeats = int(std::clamp(1e-3 / once, 1.0, 100.0));
        for (double spent = 0; times.size() < 3 || spent < seconds_;
             spent += times.back() * repeats) {
            times.push_back(seconds_of(backend_, row.run, repeats));
            if (beside) theirs.push_back(seconds_of(*cublas_, row.by_cublas, repeats));
            parts.push_back(work / times.back() / limit(row));
        }
        const double seconds = median(times);
        std::vector<Cell> cells = {
            {"model", row.model, "model", "{:<8}"},
            {"op", row.op, "op", "{:<21}"},
            {"shapes", row.shapes, "shapes", "{:<41}"},
            {"layers", layers, "layers", "{:6}"},
            {"milliseconds", seconds * 1e3, "ms", "{:9.3f}"},
            {"rate", work / seconds / 1e9, "rate", "{:7.1f}"},
            {"unit", row.flops > 0 ? "GFLOP/s" : "GB/s", "", "{:<7}"},
            {"percent", 100 * median(parts), "of limit", "{:.0f} %"},
        };
        if (beside) {
            const double cublas = median(theirs);
            cells.emplace_back("cublas_milliseconds", cublas * 1e3, "cuBLAS ms", "{:.3f}");
            cells.emplace_back("percent_of_cublas", 100 * cublas / seconds, "of cuBLAS",
                               "{:.0f} %");
        }
        table_.row(cells);
        Sum& sum = sums_[row.op];
        sum.layers += layers;
        sum.seconds += layers * seconds;
        sum.at_limit += layers * seconds * median(parts);
    }

    // Of all layers by op, what a step spends most on first.
    void print_sums(const std::string& model, std::FILE* out) const {
        std::vector<std::pair<std::string, Sum>> all(sums_.begin(), sums_.end());
        std::ranges::sort(all, std::greater(), [](const auto& one) { return one.second.seconds; });
        for (const auto& [op, sum] : all)
            fmt::print(out, "{:<8}  {:<21}  {:<41}  {:6}  {:9.3f} ms  {:.0f} %\n", model, op,
                       "all layers", sum.layers, 1e3 * sum.seconds,
                       100 * sum.at_limit / sum.seconds);
    }

 private:
    struct Sum {
        int layers = 0;
        double seconds = 0, at_limit = 0;
    };
    // Operations, or bytes, a second that the machine can do.
    double limit(const KernelRow& row) {
        if (row.flops > 0) return backend_.measure_peak_gflops() * 1e9;
        // 32 MB: far more than a core's own cache; 128 MB: more than a GPU's.
        const bool host = backend_.host_visible();
        const int elems = host ? 8 << 20 : 32 << 20;
        if (!a_.data) {
            for (Tensor* one : {&a_, &b_})
                *one = backend_.alloc(Shape{1, 1, 1, elems}, Type::kFloat32);
            backend_.fill(b_.floats(), size_t(elems), 1);
            backend_.synchronize();
        }
        const auto work = [&](Backend& on) {
            host ? on.add(a_, b_) : on.copy(a_.floats(), b_.floats(), size_t(elems));
        };
        return (host ? 12.0 : 8.0) * elems / seconds_of(backend_, work, host ? 1 : 4);
    }

    Backend& backend_;
    Backend* cublas_;
    const double seconds_;
    Table& table_;
    std::map<std::string, Sum> sums_;
    Tensor a_, b_;
};

}  // namespace

int bench_kernels(const Config& config, int batch, double seconds, std::FILE* out,
                  const MakeBackend& make) {
    int rows = 0;
    Table table(config.json, out);
    for (const auto& [model, own_batch] : kTimedModels) {
        const int images = batch ? batch : own_batch;
        std::map<std::string, int> layers;  // by the row's name
        const auto count = [&](const std::string& name) {
            if (name.find(config.filter) != std::string::npos) ++layers[name];
            return false;
        };
        for_each_row(model, images, nullptr, count, {});
        if (layers.empty()) continue;
        // A backend for each model: its memory is given back in between.
        const auto backend = make(config);
        std::unique_ptr<Backend> cublas;
        std::string why_none;
        if (!backend->host_visible()) try {
                Config with_cublas = config;
                with_cublas.gemm = Gemm::kCublas;
                cublas = make(with_cublas);
            } catch (const Error& error) {
                why_none = error.what();
            }
        if (!config.json && rows == 0) {
            fmt::print(out, "{}; limit {:.0f} GFLOP/s ({})\n", backend->description(),
                       backend->measure_peak_gflops(),
                       config.precision == Precision::kBf16 ? "products of bf16, from L1"
                                                            : "multiply-adds on registers");
            if (!why_none.empty()) fmt::print(out, "no cuBLAS to compare with: {}\n", why_none);
        }
        RowTimer timer(*backend, cublas.get(), seconds, table);
        std::set<std::string> seen;
        const auto wanted = [&](const std::string& name) {
            return layers.count(name) && !seen.count(name);
        };
        for_each_row(model, images, backend.get(), wanted, [&](const KernelRow& row) {
            timer.time(row, layers[row.name()]);
            seen.insert(row.name());
            ++rows;
        });
        if (!config.json && seen.size() > 1) timer.print_sums(model, out);
    }
    return rows;
}

}  // namespace convoy
