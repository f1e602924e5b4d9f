// bench_data.cpp — the stages one by one, then together.
#include <algorithm>

#include "data/decode.h"
#include "data/loader.h"
#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/bench/bench.h"
#include "src/train/input.h"

namespace convoy {
namespace {

struct Speed {
    double images;  // a second
    double bytes;   // of an image as it is copied to the device; 0: before that stage
};

// Calls `one` for sample after sample, round and round; it returns its image's bytes. The first 64
// samples are not timed: they fill caches and size buffers.
template <class One>
Speed time_stage(size_t samples, double seconds, One one) {
    for (size_t i = 0; i < std::min<size_t>(samples, 64); ++i) one(i);
    const auto begin = Clock::now();
    size_t done = 0;
    double bytes = 0;
    do bytes += one(done++ % samples);
    while (seconds_since(begin) < seconds);
    return {double(done) / seconds_since(begin), bytes / double(done)};
}

double row_bytes(const Preprocess& how) { return double(slot_elems(1, how.size, false)) * 4; }

Speed time_loader(std::shared_ptr<const Source> source, const Preprocess& how, bool packed,
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
    return {double(images) / seconds_since(begin), bytes / double(std::max<int64_t>(images, 1))};
}

// limit: what `threads` threads could do without the loader; 0: not known.
void print_row(Table& table, const char* stage, int threads, Speed speed, double limit = 0) {
    const double percent = limit > 0 ? 100 * speed.images / limit : 0;
    table.row({{"event", "bench_data"},
               {"stage", stage, "stage", "{:<29}"},
               {"threads", threads, "threads"},
               {"images_per_second", speed.images, "images/s", "{:8.1f}"},
               {"per_thread", speed.images / threads, "per thread", "{:.1f}"},
               {"percent_of_limit", percent},
               {"", percent > 0 ? fmt::format("{:.0f} %", percent) : "", "of limit", "{:>8}"},
               {"bytes_per_image", speed.bytes},
               {"", speed.bytes > 0 ? fmt::format("{:.0f}", speed.bytes / 1000) : "", "KB/image",
                "{:>8}"}});
}

}  // namespace

void bench_data(std::shared_ptr<const Source> source, const Preprocess& how, bool packed,
                int threads, double seconds, Table& table) {
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
    const auto time = [&](const char* stage, auto one) {
        const Speed speed = time_stage(source->size(), seconds, one);
        print_row(table, stage, 1, speed);
        return speed.images;
    };
    time("read", [&](size_t i) {
        source->read(i, bytes);
        return 0;
    });
    time("read, decode", [&](size_t i) {
        open(i);
        decoder.read(image);
        return 0;
    });
    time("read, decode, validation row", [&](size_t i) {
        open(i);
        decoder.read(image);
        input_row(image, validation, 0, i, resizer, row.data());
        return row_bytes(how);
    });
    const double as_floats = time("read, decode, training row", [&](size_t i) {
        open_crop(i);
        input_row(image, how, 0, i, resizer, row.data());
        return row_bytes(how);
    });
    Packer packer;
    std::vector<uint8_t> block(packed_image_bytes(how.size));
    const double as_pixels = time("read, decode, training pixels", [&](size_t i) {
        open_crop(i);
        const auto packed_bytes =
            packer.prepare(view(image), input_resizing(image.H, image.W, how, 0, i));
        packer.write(block.data(), 0);
        return double(packed_bytes);
    });
    for (int t = 1; t <= threads; t = t < threads ? std::min(2 * t, threads) : t + 1)
        print_row(table, packed ? "loader, training, pixels" : "loader, training", t,
                  time_loader(source, how, packed, t, seconds),
                  (packed ? as_pixels : as_floats) * t);
}

}  // namespace convoy
