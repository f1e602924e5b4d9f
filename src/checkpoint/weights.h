// weights.h — a model's weights in torchvision's names and layouts.
//
// Ours is KRSC for convolutions and, after a flatten, (H,W,C) order of a linear's inputs;
// torchvision's is OIHW and (C,H,W). This is the only place that transposes.
#pragma once

#include <string>
#include <vector>

#include "src/checkpoint/safetensors.h"
#include "src/model/model.h"

namespace convoy {

// All params of the model, running statistics and num_batches_tracked included, in torchvision's
// names and layouts; num_batches_tracked is `steps` in layers that are not frozen.
SafeTensors export_weights(Model& model, Backend& backend, int64_t steps = 0);

struct ImportReport {
    // Names of tensors; fresh: of the model, missing in the file or of another shape there.
    std::vector<std::string> loaded, fresh, unused;
    std::string text() const;  // for the log
};
// Copies what fits by name and shape into the model. A layer with a param that is missing or of
// another shape is an Error; with `partial` it starts fresh as a whole, and is reported.
ImportReport import_weights(const SafeTensors& from, Model& model, Backend& backend, bool partial);

// The built-in model whose parameters' names and shapes the tensors have, but for those of the last
// layer. Throws Error that begins with `path` where there is none.
std::string recognised_model(const SafeTensors& tensors, const std::string& path, Backend& backend);

}  // namespace convoy
