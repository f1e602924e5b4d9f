// input.h — a batch from the loader → the tensor that the first layer reads.
//
// Floats are copied to the device, or read where they are. The tensor has the type of the
// activations: float or bf16.
//
// A device with memory of its own can receive the next batch during the current step. There are two
// copies on the device that take turns, so none is overwritten while it is read:
//
//   device    step i reads place 0 ──────┐ step i+1 reads place 1 ─ …
//   upload        batch i+1 to place 1   └───── batch i+2 to place 0
//   host      fetch_ahead(i+1), waits for step i, take(i+1), …
#pragma once

#include <utility>
#include <vector>

#include "data/loader.h"
#include "src/model/model.h"

namespace convoy {

class Input {
 public:
    // For batches up to what `model` is planned for. ahead: allows fetch_ahead().
    Input(Backend& backend, const Model& model, bool ahead = false);
    // Valid until the next call, and while the batch is.
    Tensor take(const Batch& batch);
    // Starts copying the batch that is to be taken next. Ops on the batch before the one taken last
    // must be done. Does nothing where the device reads the host's memory.
    void fetch_ahead(const Batch& next);

 private:
    const float* on_device(const Batch& batch, Shape shape);
    Shape images(int N) const { return {N, size_.H, size_.W, size_.C}; }

    Backend& backend_;
    const InputSize size_;
    float* copies_[2] = {};         // on the device, where it does not read the host's memory
    int turn_ = 0;                  // the copy that was taken last
    Tensor tensor_;                 // the result, for bf16
    const Batch* ahead_ = nullptr;  // being copied to the other copy
    uint64_t ahead_number_ = 0;
};

// Host memory for a loader: slots for batches as large as the model is planned for.
std::vector<float*> lend_slots(Backend& backend, const Model& model, int count);

}  // namespace convoy
