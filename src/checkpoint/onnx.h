// onnx.h — exports a trained model as an ONNX file, opset 17.
//
//   input     "input", float N×C×H×W, normalised; with preprocessing "pixels", uint8 N×H×W×C,
//             0 to 255, RGB or grey. N is free; H and W are the model's.
//   outputs   "logits", float N×classes; with preprocessing also "probabilities"
//   weights   initializers, with the names and layouts of model.safetensors
//   metadata  that of model.safetensors, and "resize": {"to": [rows, columns], "crop": [rows,
//             columns]} or {"shorter_side": pixels, "crop": …}. An image is resized, in the second
//             form without a change of its shape, and then cropped to its centre.
#pragma once

#include <string>

#include "src/checkpoint/checkpoint.h"

namespace convoy {

// weights: as export_weights() returns them for the card's model. Throws Error: a layer without
// ONNX form, more than the 2 GB that such a file can hold, a file that cannot be written.
void write_onnx(const std::string& path, const ModelCard& card, const SafeTensors& weights,
                bool with_preprocessing);

// Whether layers of this kind (LayerText::kind) have an ONNX form. A test checks that all have.
bool has_onnx_form(const std::string& kind);

}  // namespace convoy
