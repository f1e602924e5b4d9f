// bench_data.cpp — the stages one by one, then together.
#include "src/bench_data.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include "data/decode.h"
#include "data/loader.h"
#include "src/base/check.h"

namespace convoy {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Calls `one` for sample after sample, round and round. A first lap of up to 64 samples is not
// timed: it fills caches and sizes buffers.
double images_per_second(size_t samples, double seconds, const std::function<void(size_t)>& one) {
    for (size_t i = 0; i < std::min<size_t>(samples, 64); ++i) one(i);
    const Clock::time_point begin = Clock::now();
    size_t done = 0;
    do one(done++ % samples);
    while (since(begin) < seconds);
    return double(done) / since(begin);
}

double loader_rate(std::shared_ptr<const Source> source, const Preprocess& how, int threads,
                   double seconds) {
    const int64_t batch = std::min<int64_t>(32, int64_t(source->size()));
    const size_t slot_elems = size_t(batch) * size_t(how.size) * size_t(how.size) * 3;
    std::vector<float> memory(3 * slot_elems);
    Loader loader(std::move(source), how, {batch, {1}, 0, threads, true},
                  {memory.data(), memory.data() + slot_elems, memory.data() + 2 * slot_elems});
    uint32_t epoch = 0;
    loader.start(epoch, 0);
    int64_t images = 0;
    Clock::time_point begin = Clock::now();
    for (int64_t step = 0; step < 4 || since(begin) < seconds; ++step) {
        Batch* ready = loader.next();
        if (!ready) {
            loader.start(++epoch, 0);
            continue;
        }
        images += ready->n;
        loader.release(ready);
        if (step == 2) images = 0, begin = Clock::now();  // the slots filled before are not counted
    }
    return double(images) / since(begin);
}

}  // namespace

std::vector<DataBenchRow> bench_data(std::shared_ptr<const Source> source, const Preprocess& how,
                                     int threads, double seconds) {
    ENSURE(threads >= 1 && source->size() > 0, threads, " threads, ", source->size(), " images");
    std::vector<uint8_t> bytes;
    Decoder decoder;
    Image image;
    Resizer resizer;
    std::vector<float> row(size_t(how.size) * size_t(how.size) * 3);
    const auto open = [&](size_t i) {
        source->read(i, bytes);
        decoder.open(bytes, source->name(i));
    };
    const auto rate = [&](const std::function<void(size_t)>& one) {
        return images_per_second(source->size(), seconds, one);
    };
    std::vector<DataBenchRow> rows;
    rows.push_back({"read", 1, rate([&](size_t i) { source->read(i, bytes); })});
    rows.push_back({"read, decode", 1, rate([&](size_t i) {
                        open(i);
                        decoder.read(image);
                    })});
    rows.push_back({"read, decode, validation row", 1, rate([&](size_t i) {
                        open(i);
                        decoder.read(image);
                        validation_row(image, how, resizer, row.data());
                    })});
    rows.push_back({"read, decode, training row", 1, rate([&](size_t i) {
                        open(i);
                        decoder.read(training_crop(decoder.H(), decoder.W(), how, 0, i), image);
                        training_row(image, how, 0, i, resizer, row.data());
                    })});
    const double alone = rows.back().images_per_second;
    for (int t = 1; t <= threads; t = t < threads ? std::min(2 * t, threads) : t + 1)
        rows.push_back({"loader, training", t, loader_rate(source, how, t, seconds), alone * t});
    return rows;
}

void print_data_bench(const std::vector<DataBenchRow>& rows, bool json, std::FILE* out) {
    if (!json)
        fmt::print(out, "{:<30} {:>7} {:>10} {:>12} {:>9}\n", "stage", "threads", "images/s",
                   "per thread", "of limit");
    for (const DataBenchRow& row : rows) {
        const double each = row.images_per_second / row.threads;
        const double percent = row.limit > 0 ? 100 * row.images_per_second / row.limit : 0;
        if (json)
            fmt::print(out,
                       "{{\"event\":\"bench_data\",\"stage\":\"{}\",\"threads\":{},"
                       "\"images_per_second\":{:.1f},\"per_thread\":{:.1f},"
                       "\"percent_of_limit\":{:.1f}}}\n",
                       row.stage, row.threads, row.images_per_second, each, percent);
        else
            fmt::print(out, "{:<30} {:>7} {:>10.1f} {:>12.1f} {:>9}\n", row.stage, row.threads,
                       row.images_per_second, each,
                       percent > 0 ? fmt::format("{:.0f} %", percent) : "");
    }
}

}  // namespace convoy
