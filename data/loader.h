// loader.h — decode threads that fill lent memory with batches, in the order of the steps.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "data/augment.h"
#include "data/order.h"
#include "data/pack.h"
#include "data/source.h"

namespace convoy {

// One rank's part of one step. Valid until release().
struct Batch {
    float* x = nullptr;              // n rows of size·size·3 floats: the slot; null if packed
    int n = 0;                       // images in it; less than `wanted` where files did not decode
    int wanted = 0;                  // this rank's share of the step, may be 0
    std::vector<int32_t> labels;     // n
    std::vector<uint64_t> samples;   // n: numbers of the samples in the source
    std::vector<int32_t> positions;  // n: places in the step's global slice, ascending
    int64_t global_wanted = 0;       // size of the step's global slice over all ranks
    uint64_t number = 0;             // a new one for each batch of a loader

    // With LoaderOptions::packed, in place of x (pack.h).
    uint8_t* packed = nullptr;      // the slot
    size_t packed_bytes = 0;        // used of it
    std::vector<Picture> pictures;  // n
    const float* values = nullptr;  // of pixel_values(), 3·256 (augment.h)
};

struct LoaderOptions {
    int64_t batch = 0;           // global: size of a step's slice
    std::vector<double> shares;  // one weight a rank
    int rank = 0;
    int threads = 1;       // decode threads
    bool training = true;  // permuted and augmented; else in order, as Augment::none
    bool packed = false;   // pixels and tables for a device that resizes, not finished rows
};

// Each of `slots`, which the trainer lends, holds max_share × size·size·3 floats, or max_share ×
// packed_image_bytes(size). While the trainer works on one slot the threads fill the others
// (bounded prefetch = slots − 1):
//
//   free ──open──► filling ──last row──► ready ──next()──► lent ──release()──► free
//
// Step s takes slot s mod slots. Its rows are handed out one at a time in order, so all threads
// work on the step that is needed first. A row depends on its sample alone, not on which thread
// made it or when.
class Loader {
 public:
    Loader(std::shared_ptr<const Source> source, const Preprocess& how, LoaderOptions options,
           std::vector<float*> slots);
    ~Loader();  // stops and joins the threads

    // Largest share that any step can have: what a slot must hold.
    static int64_t max_share(const LoaderOptions& options);

    // Steps of an epoch from `consumed` samples on: ⌈(size − consumed) / batch⌉.
    int64_t steps(int64_t consumed = 0) const;

    // Starts (again) at `consumed` samples into `epoch`; drops what was prefetched.
    void start(uint32_t epoch, int64_t consumed);
    // The next step's batch; blocks until it is filled. nullptr at the end of the epoch. Throws
    // what a decode thread threw. (A bad image is left out instead, named once and counted.)
    Batch* next();
    // What next() will return, if it is filled already, else null. The loader owns it; valid until
    // next() or start().
    const Batch* peek() const;
    void release(Batch* batch);

    // Why samples did not decode, once for each sample; those found since the last call.
    std::vector<std::string> take_bad_reasons();
    double waited_seconds() const;  // time next() blocked, in all

 private:
    enum class State { free, filling, ready, lent };
    struct Slot {
        Batch batch;
        State state = State::free;
        int claimed = 0, done = 0;  // rows taken by a thread, rows finished
        std::vector<char> good;     // of each row: did it decode?
    };
    struct Buffers;  // of a decode thread

    void decode_rows();  // a decode thread
    void make_row(Buffers& buffers, Slot& slot, size_t row);
    // Under the lock:
    Slot* claim();
    void open_step(Slot& slot);
    void finish(Slot& slot);
    Slot& slot_of(int64_t step) { return slots_[size_t(step) % slots_.size()]; }

    const std::shared_ptr<const Source> source_;
    Preprocess how_;
    const LoaderOptions options_;
    std::vector<float> values_;  // of pixels, for packed batches
    std::vector<Slot> slots_;

    mutable std::mutex mutex_;       // guards what follows, and each Slot except its rows
    std::condition_variable work_;   // for threads: a row to decode, or the end
    std::condition_variable ready_;  // for next(), start(): a slot is ready, a thread idle
    bool running_ = false, stopping_ = false;
    int busy_ = 0;                // threads that are decoding a row
    std::exception_ptr failure_;  // of a thread, since start()
    uint32_t epoch_ = 0;
    int64_t consumed_ = 0;            // at start()
    int64_t opened_ = 0, taken_ = 0;  // steps since start()
    uint64_t batches_ = 0;            // opened since construction
    std::vector<uint32_t> order_;     // of order_epoch_
    int64_t order_epoch_ = -1;
    std::set<uint64_t> bad_samples_;
    std::vector<std::string> bad_reasons_;
    double waited_ = 0;
    std::vector<std::thread> threads_;  // last: all else must exist when they run
};

}  // namespace convoy
