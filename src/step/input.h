// input.h — a batch from the loader → the tensor that the first layer reads, float or bf16. Pixels
// are uploaded as bytes, and the device normalises them; the CPU gets floats from the loader.
//
// A device with separate memory can receive the next batch during the current step. It has two
// buffers that alternate, so that none is overwritten while it is read:
//
//   device    step i reads buffer 0 ──────┐ step i+1 reads buffer 1 ─ …
//   upload        batch i+1 to buffer 1   └───── batch i+2 to buffer 0
//   host      fetch_ahead(i+1), waits for step i, take(i+1), …
#pragma once

#include <vector>

#include "data/loader.h"
#include "src/model/model.h"

namespace convoy {

class Input {
 public:
    // For batches up to model.max_batch(). ahead: allows fetch_ahead(). On a device with
    // separate memory, the first batch allocates the buffers; the first one of floats, larger ones.
    Input(Backend& backend, const Model& model, bool ahead = false);
    // The tensor is valid until the next call, and while the batch is valid.
    Tensor take(const Batch& batch);
    // Starts copying the batch that will be taken next. Ops on the batch before the current one
    // must be done. Does nothing if the device reads host memory.
    void fetch_ahead(const Batch& next);

 private:
    void alloc_copies(size_t elem_bytes);
    const float* on_device(const Batch& batch);
    Shape images(int N) const { return {N, size_.H, size_.W, size_.C}; }
    // The floats that take as much memory as N images with `bytes` per number.
    size_t floats_of(int N, size_t bytes) const { return (images(N).elems() * bytes + 3) / 4; }

    Backend& backend_;
    const InputSize size_;
    const InputStatistics statistics_;
    const int max_batch_, count_;   // count_: number of buffers
    size_t elem_bytes_ = 0;         // for which they have room; 0: not allocated yet
    float* copies_[2] = {};         // the buffers on the device, unless it reads host memory
    int turn_ = 0;                  // the buffer that was taken last
    Tensor tensor_;                 // the result, unless it is the floats of the loader
    const Batch* ahead_ = nullptr;  // being copied to the other buffer
    uint64_t ahead_number_ = 0;
};

// Host memory for a loader: `count` slots for batches of model.max_batch().
std::vector<float*> lend_slots(Backend& backend, const Model& model, int count);

// A rank's part, by its share, of a batch of `global` images with random pixels and labels, to time
// steps without the input pipeline. The backend owns the pixels.
Batch random_batch(Backend& backend, int64_t global, std::span<const double> shares, int rank,
                   InputSize size, int classes, uint64_t seed);

}  // namespace convoy
