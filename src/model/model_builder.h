// model_builder.h — from the parsed text to layers and rows.
#pragma once

#include "src/model/model.h"
#include "src/model/model_text.h"

namespace convoy {

// Checks that each layer fits the one before, registers the rows (frozen ones marked), fuses.
// Throws Error naming the line.
Chain build_layers(const ModelText& text, const ModelOptions& options, int size, Params& params);

}  // namespace convoy
