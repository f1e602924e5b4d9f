// input.h — a batch as the loader left it → the tensor that the first layer reads.
//
//   --augment-on cpu      finished floats: copied to the device, or read where they are
//   --augment-on device   one block of pixels and tables is copied, Backend::resize does the rest
//
// The tensor holds what activations are: floats, or bf16 made of them.
#pragma once

#include <vector>

#include "data/loader.h"
#include "src/model.h"

namespace convoy {

class Input {
 public:
    // For batches up to what `model` is planned for; packed ones only with `packed`.
    Input(Backend& backend, const Model& model, bool packed = false);
    // Valid until the next call, and while the batch is.
    Tensor take(const Batch& batch);

 private:
    Backend& backend_;
    const int size_;
    Tensor tensor_;            // device memory, where the batch is not read from the slot
    float* staged_ = nullptr;  // device copy of the slot, where that is not yet the tensor
    std::vector<Picture> pictures_;
};

// For Backend::resize, which knows nothing of loaders.
Picture picture_of(const PackedImage& image);

// Floats of host memory that a loader's slot needs for `batch` images of size×size.
size_t slot_elems(int64_t batch, int size, bool packed);

}  // namespace convoy
