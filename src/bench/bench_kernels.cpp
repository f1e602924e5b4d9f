// bench_kernels.cpp — see bench_kernels.h.
#include "src/bench/bench_kernels.h"

#include <algorithm>
#include <set>
#include <vector>

#include "src/base/clock.h"
#include "src/base/median.h"
#include "src/base/table.h"

namespace convoy {

namespace {

// Batches with which the largest layer is a few hundred MB.
const std::pair<const char*, int> kTimedModels[] = {
    {"tiny", 64}, {"alexnet", 64}, {"vgg16", 8}, {"resnet18", 32}, {"resnet50", 16}};

double seconds_of(Backend& backend, const std::function<void(Backend&)>& run, int repeats = 1) {
    const auto begin = Clock::now();
    for (int i = 0; i < repeats; ++i) run(backend);
    backend.synchronize();
    return seconds_since(begin) / repeats;
}

// Measures the limit of the machine for a row.
class Limit {
 public:
    explicit Limit(Backend& backend) : backend_(backend) {}
    // Operations, or bytes, a second.
    double operator()(const KernelRow& row) {
        if (row.flops > 0) return backend_.measure_peak_gflops() * 1e9;
        // 32 MB: far more than a core's own cache; 128 MB: more than a GPU's.
        const bool host = backend_.host_visible();
        const size_t elems = host ? 8 << 20 : 32 << 20;
        if (!a_) {
            a_ = backend_.alloc(elems), b_ = backend_.alloc(elems);
            backend_.fill(b_, elems, 1);
            backend_.synchronize();
        }
        const Tensor a{a_, {1, 1, 1, int(elems)}}, b{b_, a.shape()};
        const auto work = [&](Backend& on) { host ? on.add(a, b) : on.copy(a_, b_, elems); };
        return (host ? 12.0 : 8.0) * double(elems) / seconds_of(backend_, work, host ? 1 : 4);
    }

 private:
    Backend& backend_;
    float *a_ = nullptr, *b_ = nullptr;
};

struct Measured {
    double seconds = 0, percent = 0;
    double cublas_seconds = 0;  // 0: not measured
};

// The limit, and cuBLAS, are measured after each run, so that other load on the machine weighs on
// all alike. cublas: may be null.
Measured measure(const KernelRow& row, Backend& backend, Backend* cublas, Limit& limit,
                 double seconds) {
    const bool beside = cublas && row.by_cublas;
    std::vector<double> times, parts, theirs;
    seconds_of(backend, row.run);  // the first run allocates scratch
    if (beside) seconds_of(*cublas, row.by_cublas);
    // On a GPU several runs at once: a launch takes the host some microseconds, which the GPU
    // spends on the run before.
    const double once = backend.host_visible() ? 1 : seconds_of(backend, row.run);
    const int repeats = int(std::clamp(1e-3 / once, 1.0, 100.0));
    for (double spent = 0; times.size() < 3 || spent < seconds; spent += times.back() * repeats) {
        times.push_back(seconds_of(backend, row.run, repeats));
        if (beside) theirs.push_back(seconds_of(*cublas, row.by_cublas, repeats));
        parts.push_back((row.flops > 0 ? row.flops : row.bytes) / times.back() / limit(row));
    }
    return {median(times), 100 * median(parts), beside ? median(theirs) : 0};
}

void print(const KernelRow& row, const Measured& m, Table& table) {
    const double rate = (row.flops > 0 ? row.flops : row.bytes) / m.seconds / 1e9;
    std::vector<Cell> cells = {
        {"model", row.model, "model", "{:<8}"},
        {"op", row.op, "op", "{:<21}"},
        {"shapes", row.shapes, "shapes", "{:<41}"},
        {"milliseconds", m.seconds * 1e3, "ms", "{:9.3f}"},
        {"rate", rate, "rate", "{:7.1f}"},
        {"unit", row.flops > 0 ? "GFLOP/s" : "GB/s", "", "{:<7}"},
        {"percent", m.percent, "of limit", "{:.0f} %"},
    };
    if (m.cublas_seconds > 0) {
        cells.emplace_back("cublas_milliseconds", m.cublas_seconds * 1e3, "cuBLAS ms", "{:.3f}");
        cells.emplace_back("percent_of_cublas", 100 * m.cublas_seconds / m.seconds, "of cuBLAS",
                           "{:.0f} %");
    }
    table.row(cells);
}

}  // namespace

int bench_kernels(const Config& config, double seconds, std::FILE* out, const MakeBackend& make) {
    int rows = 0;
    Table table(config.json, out);
    for (const auto& [model, batch] : kTimedModels) {
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
        if (!config.json && model == kTimedModels[0].first) {
            fmt::print(out, "{}; limit {:.0f} GFLOP/s (multiply-adds on registers)\n",
                       backend->description(), backend->measure_peak_gflops());
            if (!why_none.empty()) fmt::print(out, "no cuBLAS to compare with: {}\n", why_none);
        }
        std::set<std::string> seen;
        const auto wanted = [&](const std::string& name) {
            return name.find(config.filter) != std::string::npos && !seen.count(name);
        };
        Limit limit(*backend);
        for_each_row(model, batch, *backend, wanted, [&](const KernelRow& row) {
            print(row, measure(row, *backend, cublas.get(), limit, seconds), table);
            seen.insert(row.name());
            ++rows;
        });
    }
    return rows;
}

}  // namespace convoy
