// weights.h — a model's weights in torchvision's names and layouts.
//
// Ours is KRSC for convolutions and, after a flatten, (H,W,C) order of a linear's inputs;
// torchvision's is OIHW and (C,H,W). Nothing else transposes weights.
#pragma once

#include <string>
#include <vector>

#include "src/checkpoint/safetensors.h"
#include "src/model/model.h"

namespace convoy {

// All params of the model with torchvision's names and layouts, including running statistics and
// num_batches_tracked, which is `steps` in layers that are not frozen.
SafeTensors export_weights(Model& model, Backend& backend, int64_t steps = 0);

struct ImportReport {
    // Names of tensors. fresh: initialised randomly, as the file lacks them or has another shape.
    std::vector<std::string> loaded, fresh, unused;
    std::string text() const;  // for the log
};
// Copies the tensors whose names and shapes match into the model. Throws Error if a layer has a
// param that is missing or of another shape; with `partial` that layer keeps its random start
// values and is reported.
ImportReport import_weights(const SafeTensors& from, Model& model, Backend& backend, bool partial);

// The built-in model whose names and shapes most tensors have; the last layer may differ. Throws
// Error that begins with `path` if there is none.
std::string recognised_model(const SafeTensors& tensors, const std::string& path, Backend& backend);

}  // namespace convoy
