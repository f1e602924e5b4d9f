// loader.h — decode threads that fill the trainer's memory with batches, in the order of the steps.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "data/images/augment.h"
#include "data/images/decode.h"
#include "data/order.h"
#include "data/sources/source.h"
#include "src/base/trace.h"

namespace convoy {

// One rank's part of one step. Valid until release().
struct Batch {
    float* x = nullptr;              // n rows of H·W·C floats: the slot
    bool bytes = false;              // x has bytes instead: pixels, not normalised
    int n = 0;                       // images in it; fewer than `wanted` if files did not decode
    int wanted = 0;                  // this rank's share of the step, may be 0
    std::vector<int32_t> labels;     // n
    std::vector<uint64_t> samples;   // n: numbers of the samples in the source
    std::vector<int32_t> positions;  // n: places in the step's global slice, ascending
    int64_t global_wanted = 0;       // size of the step's global slice over all ranks
    std::vector<int64_t> wanted_by;  // of it, by rank
    uint64_t number = 0;             // a new one for each batch of a loader
    // If images are mixed (policy.h): n labels of the partners, and the weights of `labels`.
    std::vector<int32_t> second_labels;
    std::vector<float> first_parts;

    size_t elem_bytes() const { return bytes ? 1 : sizeof(float); }
    char* slot() const { return reinterpret_cast<char*>(x); }
};

struct LoaderOptions {
    int64_t batch = 0;           // global: size of a step's slice
    std::vector<double> shares;  // one weight per rank
    int rank = 0;
    int threads = 1;       // decode threads
    bool training = true;  // permuted and augmented; else in order, for_validation()
    bool bytes = false;  // rows are bytes, unless changes need floats: for a device that normalises
    bool pixels = true;  // false: no image is read, all count as good, and x does not change
    std::vector<int64_t> parts = {};  // samples per rank, if ranks have different ones; else empty
    uint64_t window = 0;  // of the order in training (order.h); 0: one permutation of all
    std::vector<Track*> tracks = {};  // of the threads, or none
};

// The trainer lends `slots` of max_share × size.elems() floats each. While it works on one slot,
// the threads fill the others, so they are at most slots − 1 batches ahead:
//
//   free ──open──► filling ──last row──► ready ──next()──► lent ──release()──► free
//
// Step s uses slot s mod slots. Threads take its rows one at a time in order, so all of them work
// on the step that is needed first. A row depends on its sample alone.
//
// images/augmentations.md says which image is the partner in mixup and cutmix. The partner of a
// rank's first image belongs to another rank, so each rank decodes one more image per step,
// and shares do not change the result.
class Loader {
 public:
    Loader(SourcePtr source, const Preprocess& how, LoaderOptions options,
           std::vector<float*> slots);
    ~Loader() { stop(); }

    // The largest share that a step can have: a slot must hold it.
    static int64_t max_share(const LoaderOptions& options);

    int64_t samples() const { return samples_; }  // of an epoch, over all ranks
    // Steps of an epoch from `consumed` samples on: ⌈(size − consumed) / batch⌉.
    int64_t steps(int64_t consumed = 0) const;

    // Starts (again) at `consumed` samples into `epoch`, and drops all prefetched batches.
    void start(uint32_t epoch, int64_t consumed);
    // The next step's batch; blocks until it is filled. nullptr at the end of the epoch. Rethrows
    // an exception of a decode thread, but leaves out a bad image, names it once and counts it.
    Batch* next();
    // The batch that next() will return, if it is filled; else null. Valid until next() or start().
    const Batch* peek() const;
    void release(Batch* batch);

    // Why samples did not decode, once per sample: those found since the last call.
    std::vector<std::string> take_bad_reasons();
    double waited_seconds() const;  // total time that next() blocked

 private:
    void stop();  // and join the threads
    enum class State { free, filling, ready, lent };
    struct Slot {
        Batch batch;
        State state = State::free;
        int claimed = 0, done = 0;   // rows taken by a thread, rows finished
        std::vector<char> good;      // per row: whether it decoded
        std::vector<float> partner;  // if images are mixed: the row of row 0's partner
    };
    void decode_rows(Track* track);  // a decode thread
    void make_row(ImageBuffers& buffers, Slot& slot, size_t row);
    void mix(Slot& slot);
    // Under the lock:
    Slot* claim();
    void open_step(Slot& slot);
    struct Slice {                     // of the epoch: what makes a step
        int64_t size;                  // over all ranks
        std::vector<int64_t> by_rank;  // the part of each rank
        Range own;                     // this rank's: positions in the order of its source
        int64_t first;                 // place of own.begin in the slice
        uint64_t place;                // its first position in the order of this rank's source
    };
    Slice slice(int64_t step) const;
    void finish(Slot& slot);
    Slot& slot_of(int64_t step) { return slots_[size_t(step) % slots_.size()]; }

    const SourcePtr source_;
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
