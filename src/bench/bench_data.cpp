// bench_data.cpp — the stages one by one, then together.
#include <algorithm>

#include "data/decoded_cache.h"
#include "data/images/decode.h"
#include "src/base/check.h"
#include "src/bench/bench.h"

namespace convoy {
namespace {

// What is done with one sample, and the seconds that all samples took.
struct Stage {
    const char* name;
    std::function<void(size_t)> one;
    double seconds = 0;
};

// Times all stages in turns, sample by sample, so that a disturbance hits all of them. Samples come
// from the whole set, because the first ones may all be of one class. The first 64 are not timed:
// they fill caches and allocate buffers. Returns the number of samples that were timed.
size_t time_stages(std::vector<Stage>& stages, const Source& source, double seconds) {
    // A bad image takes its time, too.
    const auto run = [&](Stage& stage, size_t i) { image_fault(source, i, [&] { stage.one(i); }); };
    for (size_t i = 0; i < std::min<size_t>(source.size(), 64); ++i)
        for (Stage& stage : stages) run(stage, i);
    constexpr size_t kPrime = 7919;
    size_t done = 0;
    for (const auto begin = Clock::now(); done == 0 || seconds_since(begin) < seconds; ++done)
        for (Stage& stage : stages) {
            const auto start = Clock::now();
            run(stage, done * kPrime % source.size());
            stage.seconds += seconds_since(start);
        }
    return done;
}

// Images per second.
double time_loader(std::shared_ptr<const Source> source, const Preprocess& how,
                   LoaderOptions options, double seconds) {
    options.batch = std::min<int64_t>(32, int64_t(source->size())), options.shares = {1};
    const size_t elems = size_t(options.batch) * how.size.elems();
    std::vector<float> memory(3 * elems);
    Loader loader(std::move(source), how, options,
                  {memory.data(), memory.data() + elems, memory.data() + 2 * elems});
    uint32_t epoch = 0;
    loader.start(epoch, 0);
    int64_t images = 0;
    auto begin = Clock::now();
    for (int64_t step = 0; step < 4 || seconds_since(begin) < seconds; ++step) {
        Batch* ready = loader.next();
        if (!ready) {
            loader.start(++epoch, 0);
            continue;
        }
        images += ready->n;
        loader.release(ready);
        // Slots that were filled before are not counted.
        if (step == 2) images = 0, begin = Clock::now();
    }
    return double(images) / seconds_since(begin);
}

}  // namespace

void bench_data(std::shared_ptr<const Source> source, const Preprocess& how,
                const LoaderOptions& options, size_t cache_bytes, double seconds, Table& table) {
    ENSURE(options.threads >= 1 && source->size() > 0, options.threads, " threads, ",
           source->size(), " images");
    std::vector<uint8_t> bytes;
    Decoder decoder(how.size.C);
    Image image;
    RowBuffers buffers;
    std::vector<float> row(how.size.elems());
    const auto print = [&](const char* stage, int threads, double speed) {
        table.row({{"event", "bench_data"},
                   {"stage", stage, "stage", "{:<30}"},
                   {"threads", threads, "threads"},
                   {"images_per_second", speed, "images/s", "{:8.1f}"},
                   {"per_thread", speed / threads, "per thread", "{:.1f}"}});
    };
    const Preprocess validation = how.for_validation();
    const auto open = [&](size_t i) {
        source->read(i, bytes);
        decoder.open(bytes, source->name(i));
    };
    std::vector<Stage> stages = {
        {"read", [&](size_t i) { source->read(i, bytes); }},
        {"read, decode",
         [&](size_t i) {
             open(i);
             decoder.read(image);
         }},
        {"read, decode, validation row",
         [&](size_t i) {
             open(i);
             decoder.read(image);
             input_row(image, validation, 0, i, buffers, row.data());
         }},
        {"read, decode, training row",
         [&](size_t i) {
             open(i);
             decoder.read(input_crop(decoder.H(), decoder.W(), how, 0, i), image);
             input_row(image, how, 0, i, buffers, row.data());
         }},
    };
    const double samples = double(time_stages(stages, *source, seconds));
    for (const Stage& stage : stages) print(stage.name, 1, samples / stage.seconds);

    const auto time_loaders = [&](const char* name, std::shared_ptr<const Source> from) {
        LoaderOptions some = options;
        for (int t = 1; t <= options.threads;
             t = t < options.threads ? std::min(2 * t, options.threads) : t + 1) {
            some.threads = t;
            print(name, t, time_loader(from, how, some, seconds));
        }
    };
    time_loaders("loader", source);
    if (cache_bytes == 0) return;
    const auto room = std::make_shared<std::atomic<int64_t>>(int64_t(cache_bytes));
    const auto kept = keep_decoded(source, how.size.C, room);
    for (size_t i = 0; i < kept->size(); ++i) kept->read(i, bytes);
    time_loaders("loader, decoded cache", kept);
}

}  // namespace convoy
