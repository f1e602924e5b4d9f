// run_folder.h — where a run keeps its checkpoints and its log.
#pragma once

#include <string>

#include "src/config/config.h"

namespace convoy {

// --out; of a resumed run its own folder; else a new one under runs/. Made, and proven writable.
// Throws Error: another run is in there, or it cannot be written into.
std::string open_run_folder(const Config& config, int rank);

}  // namespace convoy
