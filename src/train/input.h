// input.h — a batch as the loader left it → the tensor that the first layer reads.
//
//   --augment-on cpu      finished floats: copied to the device, or read where they are
//   --augment-on device   one block of pixels and tables is copied, Backend::resize does the rest
//
// The tensor holds what activations are: floats, or bf16 made of them.
//
// Where it is copied, the next batch can travel beside the step at hand. Copies have two places
// that take turns, so nothing is written that is still read:
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
    // For batches up to what `model` is planned for; packed ones only with `packed`, fetch_ahead()
    // only with `ahead`.
    Input(Backend& backend, const Model& model, bool packed = false, bool ahead = false);
    // Valid until the next call, and while the batch is.
    Tensor take(const Batch& batch);
    // Starts the way of the batch that is to be taken next. Ops that work on the batch before the
    // one taken last must be done. (Of no effect where the device reads slots as they are.)
    void fetch_ahead(const Batch& next);

 private:
    const float* on_device(const Batch& batch, Shape shape);

    Backend& backend_;
    const int size_;
    float* copies_[2] = {};         // of slots on the device, where it does not read these
    int turn_ = 0;                  // the copy that was taken last
    Tensor tensor_;                 // what packed batches, and floats where bf16 is read, become
    const Batch* ahead_ = nullptr;  // on its way into the other copy
    uint64_t ahead_number_ = 0;
};

// Floats of host memory that a loader's slot needs for `batch` images of size×size.
size_t slot_elems(int64_t batch, int size, bool packed);

// Host memory for a loader: slots for batches as large as the model is planned for.
std::vector<float*> lend_slots(Backend& backend, const Model& model, int count, bool packed);

}  // namespace convoy
