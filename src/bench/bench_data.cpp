// bench_data.cpp — the stages one by one, then together.
#include <algorithm>

#include "data/decode.h"
#include "data/loader.h"
#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/table.h"
#include "src/bench/bench.h"
#include "src/train/input.h"

namespace convoy {
namespace {

// Calls `one` for sample after sample, round and round. The first 64 samples are not timed: they
// fill caches and size buffers.
template <class One>
double images_per_second(size_t samples, double seconds, One one) {
    for (size_t i = 0; i < std::min<size_t>(samples, 64); ++i) one(i);
    const auto begin = Clock::now();
    size_t done = 0;
    do one(done++ % samples);
    while (seconds_since(begin) < seconds);
    return double(done) / seconds_since(begin);
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
    auto begin = Clock::now();
    for (int64_t step = 0; step < 4 || seconds_since(begin) < seconds; ++step) {
        Batch* ready = loader.next();
        if (!ready) {
            loader.start(++epoch, 0);
            continue;
        }
        images += ready->n;
        bytes += packed ? double(ready->packed_bytes) : double(ready->n) * row_bytes(how);
        loader.release(ready);
        // Slots that were filled before are not counted.
        if (step == 2) images = 0, bytes = 0, begin = Clock::now();
    }
    return {packed ? "loader, training, pixels" : "loader, training", threads,
            double(images) / seconds_since(begin), bytes / double(std::max<int64_t>(images, 1))};
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
    Preprocess validation = how;
    validation.augment = Augment::none;
    const auto open = [&](size_t i) {
        source->read(i, bytes);
        decoder.open(bytes, source->name(i));
    };
    const auto open_crop = [&](size_t i) {
        open(i);
        decoder.read(input_crop(decoder.H(), decoder.W(), how, 0, i), image);
    };
    std::vector<DataBenchRow> rows;
    const auto time = [&](const char* stage, double image_bytes, auto one) {
        rows.push_back({stage, 1, images_per_second(source->size(), seconds, one), image_bytes});
    };
    time("read", 0, [&](size_t i) { source->read(i, bytes); });
    time("read, decode", 0, [&](size_t i) {
        open(i);
        decoder.read(image);
    });
    time("read, decode, validation row", row_bytes(how), [&](size_t i) {
        open(i);
        decoder.read(image);
        input_row(image, validation, 0, i, resizer, row.data());
    });
    time("read, decode, training row", row_bytes(how), [&](size_t i) {
        open_crop(i);
        input_row(image, how, 0, i, resizer, row.data());
    });
    Packer packer;
    std::vector<uint8_t> block(packed_image_bytes(how.size));
    double packed_bytes = 0, images = 0;
    time("read, decode, training pixels", 0, [&](size_t i) {
        open_crop(i);
        const Resizing resizing = input_resizing(image.H, image.W, how, 0, i);
        packed_bytes += double(packer.prepare(view(image), resizing)), images += 1;
        packer.write(block.data(), 0);
    });
    rows.back().bytes = packed_bytes / images;
    const double alone = rows[rows.size() - (packed ? 1 : 2)].images_per_second;
    for (int t = 1; t <= threads; t = t < threads ? std::min(2 * t, threads) : t + 1) {
        rows.push_back(loader_row(source, how, packed, t, seconds));
        rows.back().limit = alone * t;
    }
    return rows;
}

void print_data_bench(const std::vector<DataBenchRow>& rows, bool json, std::FILE* out) {
    Table table(json, out);
    for (const DataBenchRow& row : rows) {
        const double percent = row.limit > 0 ? 100 * row.images_per_second / row.limit : 0;
        table.row({{"event", "bench_data"},
                   {"stage", row.stage, "stage", "{:<29}"},
                   {"threads", row.threads, "threads"},
                   {"images_per_second", row.images_per_second, "images/s", "{:8.1f}"},
                   {"per_thread", row.images_per_second / row.threads, "per thread", "{:.1f}"},
                   {"percent_of_limit", percent},
                   {"", percent > 0 ? fmt::format("{:.0f} %", percent) : "", "of limit", "{:>8}"},
                   {"bytes_per_image", row.bytes},
                   {"", row.bytes > 0 ? fmt::format("{:.0f}", row.bytes / 1000) : "", "KB/image",
                    "{:>8}"}});
    }
}

}  // namespace convoy
