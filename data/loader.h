// loader.h — decode threads that fill slots lent by the trainer, in the order of the steps.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
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
    int slot = 0;
    uint64_t number = 0;  // another one for each batch that a loader makes

    // With LoaderOptions::packed, in place of x (pack.h).
    const uint8_t* packed = nullptr;  // the slot
    size_t packed_bytes = 0;          // used of it
    std::vector<Picture> pictures;    // n
    const float* values = nullptr;    // what pixels become, 3·256 (augment.h)
};

struct LoaderOptions {
    int64_t batch = 0;           // global: size of a step's slice
    std::vector<double> shares;  // one weight a rank
    int rank = 0;
    int threads = 1;       // decode threads
    bool training = true;  // permuted and augmented; else in order, validation rows
    bool packed = false;   // pixels and tables for a device that resizes, not finished rows
};

// Memory is what the trainer lends: `slots`, each of at least share × size·size·3 floats, or
// packed_block_bytes(share, size). While the trainer works on one slot the threads fill the others
// (bounded prefetch = slots − 1).
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
    // what a decode thread threw (other than a bad image, which is left out, named once and
    // counted).
    Batch* next();
    // What next() will return, if it is filled already, else null. Stays the loader's: good until
    // next() or start().
    const Batch* peek() const;
    void release(Batch* batch);

    // Samples that did not decode since construction, each counted once, and the reasons of those
    // found since the last call.
    int64_t bad() const;
    std::vector<std::string> take_bad_reasons();
    double waited_seconds() const;  // time next() blocked, in all

 private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace convoy
