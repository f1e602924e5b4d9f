// bench_data.cpp — the stages one by one, then together.
#include "src/bench/bench_data.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include "data/decode.h"
#include "data/loader.h"
#include "src/base/check.h"
#include "src/train/input.h"

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

double row_bytes(const Preprocess& how) { return double(slot_elems(1, how.size, false)) * 4; }

DataBenchRow loader_row(std::shared_ptr<const Source> source, const Preprocess& how, bool packed,
                        int threads, double seconds) {
    const int64_t batch = std::min<int64_t>(32, int64_t(source->size()));
    const size_t elems = slot_elems(batch, how.size, packed);
    std::vector<float> memory(3 * elems);
    Loader loader(std::move(source), how, {batch, {1}, 0, threads, true, packed},
                  {memory.data(), memory.data() + elems, memory.data() + 2 * elems});
    uint32_t epoch = 0;
    loader.start(epoch, 0);
    int64_t images = 0;
    double bytes = 0;
    Clock::time_point begin = Clock::now();
    for (int64_t step = 0; step < 4 || since(begin) < seconds; ++step) {
        Batch* ready = loader.next();
        if (!ready) {
            loader.start(++epoch, 0);
            continue;
        }
        images += ready->n;
        bytes += packed ? double(ready->packed_bytes) : double(ready->n) * row_bytes(how);
        loader.release(ready);
        // The slots filled before are not counted.
        if (step == 2) images = 0, bytes = 0, begin = Clock::now();
    }
    return {packed ? "loader, training, pixels" : "loader, training", threads,
            double(images) / since(begin), 0, bytes / double(std::max<int64_t>(images, 1))};
}

}  // namespace

std::vector<DataBenchRow> bench_data(std::shared_ptr<const Source> source, const Preprocess& how,
                                     bool packed, int threads, double seconds) {
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
                    }),
                    0, row_bytes(how)});
    const auto open_crop = [&](size_t i) {
        open(i);
        decoder.read(training_crop(decoder.H(), decoder.W(), how, 0, i), image);
    };
    rows.push_back({"read, decode, training row", 1, rate([&](size_t i) {
                        open_crop(i);
                        training_row(image, how, 0, i, resizer, row.data());
                    }),
                    0, row_bytes(how)});
    Packer packer;
    std::vector<uint8_t> block(packed_block_bytes(1, how.size));
    double packed_bytes = 0, images = 0;
    rows.push_back({"read, decode, training pixels", 1, rate([&](size_t i) {
                        open_crop(i);
                        size_t needed = packer.look(view(image),
                                                    training_resizing(image.H, image.W, how, 0, i));
                        if (needed > block.size()) needed = packer.resize();
                        packer.write(block.data(), 0);
                        packed_bytes += double(needed), images += 1;
                    })});
    rows.back().bytes = packed_bytes / images;
    const double alone = rows[rows.size() - (packed ? 1 : 2)].images_per_second;
    for (int t = 1; t <= threads; t = t < threads ? std::min(2 * t, threads) : t + 1) {
        rows.push_back(loader_row(source, how, packed, t, seconds));
        rows.back().limit = alone * t;
    }
    return rows;
}

void print_data_bench(const std::vector<DataBenchRow>& rows, bool json, std::FILE* out) {
    if (!json)
        fmt::print(out, "{:<30} {:>7} {:>10} {:>12} {:>9} {:>9}\n", "stage", "threads", "images/s",
                   "per thread", "of limit", "KB/image");
    for (const DataBenchRow& row : rows) {
        const double each = row.images_per_second / row.threads;
        const double percent = row.limit > 0 ? 100 * row.images_per_second / row.limit : 0;
        if (json)
            fmt::print(out,
                       "{{\"event\":\"bench_data\",\"stage\":\"{}\",\"threads\":{},"
                       "\"images_per_second\":{:.1f},\"per_thread\":{:.1f},"
                       "\"percent_of_limit\":{:.1f},\"bytes_per_image\":{:.0f}}}\n",
                       row.stage, row.threads, row.images_per_second, each, percent, row.bytes);
        else
            fmt::print(out, "{:<30} {:>7} {:>10.1f} {:>12.1f} {:>9} {:>9}\n", row.stage,
                       row.threads, row.images_per_second, each,
                       percent > 0 ? fmt::format("{:.0f} %", percent) : "",
                       row.bytes > 0 ? fmt::format("{:.0f}", row.bytes / 1000) : "");
    }
}

}  // namespace convoy
