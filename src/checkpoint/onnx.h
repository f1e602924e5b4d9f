// onnx.h — a trained model as an ONNX file: opset 17, for ONNX Runtime and everything that reads
// it.
//
//   input     "input", float N×C×H×W, normalised; with preprocessing "pixels", uint8 N×H×W×C,
//             0 to 255, RGB or grey. N is free; H and W are the model's.
//   outputs   "logits", float N×classes; with preprocessing also "probabilities"
//   weights   initializers, with the names and layouts of model.safetensors
//   metadata  as of model.safetensors (model, model_text, size, classes, mean, std), and "resize":
//             {"to": [rows, columns], "crop": [rows, columns]}: before a crop of the centre an
//             image is resized, a square input to that as its shorter side, another input to just
//             that
#pragma once

#include <string>

#include "src/checkpoint/checkpoint.h"

namespace convoy {

// weights: those of the card's model, as export_weights() gives them. Throws Error: a layer without
// ONNX form, more than the 2 GB that such a file can hold, a file that cannot be written.
void write_onnx(const std::string& path, const ModelCard& card, const SafeTensors& weights,
                bool with_preprocessing);

// Whether layers of this kind (LayerText::kind) have an ONNX form. All should: tested.
bool has_onnx_form(const std::string& kind);

}  // namespace convoy
