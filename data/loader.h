// loader.h — decode threads that fill lent memory with batches, in the order of the steps.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "data/augment.h"
#include "data/decode.h"
#include "data/order.h"
#include "data/resize.h"
#include "data/source.h"
#include "src/base/trace.h"

namespace convoy {

// One rank's part of one step. Valid until release().
struct Batch {
    float* x = nullptr;              // n rows of H·W·C floats: the slot
    int n = 0;                       // images in it; less than `wanted` where files did not decode
    int wanted = 0;                  // this rank's share of the step, may be 0
    std::vector<int32_t> labels;     // n
    std::vector<uint64_t> samples;   // n: numbers of the samples in the source
    std::vector<int32_t> positions;  // n: places in the step's global slice, ascending
    int64_t global_wanted = 0;       // size of the step's global slice over all ranks
    std::vector<int64_t> wanted_by;  // of it, by rank
    uint64_t number = 0;             // a new one for each batch of a loader
    // Where images are mixed with others (policy.h), else empty: n labels of those, and the part of
    // the label above.
    std::vector<int32_t> second_labels;
    std::vector<float> first_parts;
};

struct LoaderOptions {
    int64_t batch = 0;           // global: size of a step's slice
    std::vector<double> shares;  // one weight a rank
    int rank = 0;
    int threads = 1;                  // decode threads
    bool training = true;             // permuted and augmented; else in order, as Augment::none
    int64_t max_pixels = kMaxPixels;  // of an image, else it is bad
    bool fast = false;                // decoding may reduce JPEGs (Decoder::read)
    bool pixels = true;  // false: no image is read, and all count as good; x stays as it is
    std::vector<int64_t> parts = {};  // samples that each rank alone holds; empty: each holds all
    uint64_t window = 0;  // of the order in training (order.h); 0: one permutation of all
    std::vector<Track*> tracks = {};  // of the threads, or none
};

// Each of `slots`, which the trainer lends, holds max_share × size.elems() floats. While the
// trainer works on one slot the threads fill the others (bounded prefetch = slots − 1):
//
//   free ──open──► filling ──last row──► ready ──next()──► lent ──release()──► free
//
// Step s takes slot s mod slots. Its rows are handed out one at a time in order, so all threads
// work on the step that is needed first. A row depends on its sample alone, not on which thread
// made it or when.
//
// With mixup or cutmix an image's partner is the one before it in the step's global slice (of the
// first, the last), as in torchvision; where one of the two did not decode, the other stays as it
// is. So that shares do not matter, a rank decodes one image more each step: the partner of its
// first.
class Loader {
 public:
    Loader(std::shared_ptr<const Source> source, const Preprocess& how, LoaderOptions options,
           std::vector<float*> slots);
    ~Loader();  // stops and joins the threads

    // Largest share that any step can have: what a slot must hold.
    static int64_t max_share(const LoaderOptions& options);

    int64_t samples() const { return samples_; }  // of an epoch, over all ranks
    bool is_stream() const { return source_->is_stream(); }
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
        int claimed = 0, done = 0;   // rows taken by a thread, rows finished
        int missing = 0;             // of these: a stream ended before
        std::vector<char> good;      // of each row to be made: did it decode?
        std::vector<float> partner;  // where images are mixed: the row of row 0's partner
    };
    struct Buffers;  // of a decode thread

    void decode_rows(Track* track);  // a decode thread
    void make_row(Buffers& buffers, Slot& slot, size_t row);
    void mix(Slot& slot);
    // Under the lock:
    Slot* claim();
    void open_step(Slot& slot);
    struct Slice {                     // of the epoch: what makes a step
        int64_t size;                  // over all ranks
        std::vector<int64_t> by_rank;  // of them
        Range own;                     // this rank's: positions in the order of its source
        int64_t first;                 // place of own.begin in the slice
    };
    Slice slice(int64_t step) const;
    uint64_t place_of(const Slice& step) const;
    int64_t rows(const Slice& step) const;                     // that this rank makes
    uint64_t sample_of(const Slice& step, int64_t row) const;  // its number in the source
    void finish(Slot& slot);
    Slot& slot_of(int64_t step) { return slots_[size_t(step) % slots_.size()]; }

    const std::shared_ptr<const Source> source_;
    Preprocess how_;
    const LoaderOptions options_;
    std::vector<Slot> slots_;
    // Numbers of samples count over all ranks; the source's begin at first_sample_.
    int64_t samples_, first_sample_ = 0;

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
    std::optional<Order> order_;      // of the epoch, in training
    std::set<uint64_t> bad_samples_;
    std::vector<std::string> bad_reasons_;
    double waited_ = 0;
    std::vector<std::thread> threads_;  // last: all else must exist when they run
};

}  // namespace convoy
