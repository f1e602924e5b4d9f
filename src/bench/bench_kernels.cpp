// bench_kernels.cpp — see bench_kernels.h.
#include "src/bench/bench_kernels.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "src/base/median.h"
#include "src/bench/kernel_rows.h"
#include "src/model/model.h"

namespace convoy {

namespace {

// Batches with which the largest layer is a few hundred MB.
const std::pair<const char*, int> kModels[] = {
    {"tiny", 64}, {"alexnet", 64}, {"vgg16", 8}, {"resnet18", 32}, {"resnet50", 16}};

double seconds_of(Backend& backend, const std::function<void()>& run, int repeats) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < repeats; ++i) run();
    backend.synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
           repeats;
}

// Runs one row and prints it. The limit, and cuBLAS, are measured after each run, so that whatever
// else the machine does weighs on all.
class Meter {
 public:
    Meter(Backend& backend, Backend* cublas, const KernelBench& options)
        : backend_(backend), cublas_(cublas), options_(options) {}

    void operator()(const KernelRow& row) {
        std::vector<double> times, shares, theirs;
        seconds_of(backend_, row.run, 1);  // the first run allocates scratch
        if (row.by_cublas) seconds_of(*cublas_, row.by_cublas, 1);
        // A launch takes a GPU's host some microseconds, in which the GPU does the one before.
        const double once = backend_.host_visible() ? 1 : seconds_of(backend_, row.run, 1);
        const int repeats = int(std::clamp(1e-3 / once, 1.0, 100.0));
        for (double spent = 0; times.size() < 3 || spent < options_.seconds;) {
            const double time = seconds_of(backend_, row.run, repeats);
            times.push_back(time), spent += time * repeats;
            if (row.by_cublas) theirs.push_back(seconds_of(*cublas_, row.by_cublas, repeats));
            shares.push_back((row.flops > 0 ? row.flops : row.bytes) / time / limit(row));
        }
        print(row, median(times), 100 * median(shares), theirs.empty() ? 0 : median(theirs));
    }

 private:
    // Operations, or bytes, a second.
    double limit(const KernelRow& row) {
        if (row.flops > 0) return backend_.measure_peak_gflops() * 1e9;
        if (!a_) {
            a_ = backend_.alloc(elems()), b_ = backend_.alloc(elems());
            backend_.fill(b_, elems(), 1);
            backend_.synchronize();
        }
        const Shape all{1, 1, 1, int(elems())};
        if (backend_.host_visible())
            return 12.0 * double(elems()) /
                   seconds_of(
                       backend_,
                       [&] {
                           backend_.add({a_, all}, {b_, all});
                       },
                       1);
        return 8.0 * double(elems()) /
               seconds_of(
                   backend_, [&] { backend_.copy(a_, b_, elems()); }, 4);
    }
    // 32 MB: far more than a core's own cache; 128 MB: more than a GPU's.
    size_t elems() const { return backend_.host_visible() ? 8 << 20 : 32 << 20; }
    void print(const KernelRow& row, double time, double percent, double cublas_time) {
        const double rate = (row.flops > 0 ? row.flops : row.bytes) / time / 1e9;
        const char* unit = row.flops > 0 ? "GFLOP/s" : "GB/s";
        if (options_.json) {
            nlohmann::json line{{"model", row.model},   {"op", row.op},
                                {"shapes", row.shapes}, {"milliseconds", time * 1e3},
                                {"rate", rate},         {"unit", unit},
                                {"percent", percent}};
            if (cublas_time > 0) {
                line["cublas_milliseconds"] = cublas_time * 1e3;
                line["percent_of_cublas"] = 100 * cublas_time / time;
            }
            fmt::print(options_.out, "{}\n", line.dump());
        } else {
            const std::string beside =
                cublas_time > 0 ? fmt::format("   cuBLAS {:>9.3f} ms {:>5.0f} %", cublas_time * 1e3,
                                              100 * cublas_time / time)
                                : "";
            fmt::print(options_.out,
                       "{:<9} {:<22} {:<42} {:>9.3f} ms {:>7.1f} {:<7} {:>5.0f} %{}\n", row.model,
                       row.op, row.shapes, time * 1e3, rate, unit, percent, beside);
        }
        std::fflush(options_.out);
    }

    Backend& backend_;
    Backend* const cublas_;
    const KernelBench& options_;
    float *a_ = nullptr, *b_ = nullptr;
};

// The same device with --gemm cublas, to compare with; null, and why, where there is none.
std::unique_ptr<Backend> make_cublas(const KernelBench& options, BackendOptions with,
                                     std::string* why_none) {
    with.gemm = Gemm::kCublas;
    try {
        return options.make(options.device, with);
    } catch (const Error& error) {
        *why_none = error.what();
        return nullptr;
    }
}

}  // namespace

int bench_kernels(const KernelBench& options) {
    int rows = 0;
    const std::vector<std::string> known = built_in_models();
    for (const auto& [model, batch] : kModels) {
        if (std::find(known.begin(), known.end(), model) == known.end()) continue;
        // A backend for each model: its memory is given back in between.
        const BackendOptions with{.threads = options.threads,
                                  .conv = options.conv,
                                  .precision = options.precision,
                                  .gemm = options.gemm};
        const auto backend = options.make(options.device, with);
        std::unique_ptr<Backend> cublas;
        std::string why_none;
        if (!backend->host_visible()) cublas = make_cublas(options, with, &why_none);
        Meter meter(*backend, cublas.get(), options);
        if (!options.json && model == kModels[0].first) {
            fmt::print(options.out, "{}; {:.0f} GFLOP/s of multiply-adds on registers\n",
                       backend->description(), backend->measure_peak_gflops());
            if (cublas)
                fmt::print(options.out,
                           "at the end of products: cuBLAS, and percent of its speed\n");
            else if (!why_none.empty())
                fmt::print(options.out, "no cuBLAS beside the products: {}\n", why_none);
        }
        std::set<std::string> seen;
        const auto wanted = [&](const std::string& name) {
            return name.find(options.filter) != std::string::npos && !seen.count(name);
        };
        const auto measure = [&](const KernelRow& row) {
            meter(row);
            seen.insert(cat(row.model, " ", row.op, " ", row.shapes));
            ++rows;
        };
        for_each_row(model, batch, *backend, cublas.get(), wanted, measure);
    }
    return rows;
}

}  // namespace convoy
