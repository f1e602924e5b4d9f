// weights.h — a model's weights in foreign clothes: torchvision's names and layouts.
//
// Ours is KRSC for convolutions and, behind a flatten, (H,W,C) order of a linear's inputs;
// torchvision's is OIHW and (C,H,W). This is the only place that transposes.
#pragma once

#include <string>
#include <vector>

#include "src/checkpoint/safetensors.h"
#include "src/model/model.h"

namespace convoy {

// All rows of the model, running statistics and num_batches_tracked included, in torchvision's
// names and layouts.
SafeTensors export_weights(Model& model, Backend& backend);
// The same in our own layouts (KRSC; a linear's inputs in H, W, C order).
SafeTensors native_weights(Model& model, Backend& backend);

struct ImportReport {
    std::vector<std::string> loaded, fresh, unused;  // rows; "fresh": missing or of another shape
    std::string text() const;                        // for the log: one or two lines
};
// Copies what fits by name and shape into the model. With `partial` false anything missing or of
// another shape is an Error naming it; with true it starts fresh and is reported.
ImportReport import_weights(const SafeTensors& from, Model& model, Backend& backend, bool partial);

}  // namespace convoy
