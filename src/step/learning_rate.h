// learning_rate.h — the learning rate of each step.
#pragma once

#include <cstdint>

#include "src/config/config.h"

namespace convoy {

// The learning rate of step `step` (from 0) in a run of `total` steps with `per_epoch` steps per
// epoch. Warm-up is linear, from base/warmup_steps to base; then
//   constant  base
//   step      base · gamma^⌊(epochs done)/step_epochs⌋
//   onecycle  without warm-up: a cosine from base/25 to base in 0.3·total − 1 steps, then to
//             base/250000; PyTorch's OneCycleLR. Smith, Topin, "Super-Convergence" (2019)
//   range     without warm-up: from base/10⁶ to base, by the same factor in each step
//   cosine    base · (1 + cos(π · progress))/2, progress from the end of the warm-up to `total`
double learning_rate(const Config& config, double base, int64_t step, int64_t total,
                     int64_t per_epoch);

// --lr if it is not 0. Else for sgd 0.1 at batch 256 with batch norm, 0.01 at batch 128 without it
// (torchvision's recipes), proportional to the batch; for adamw 0.001; for muon 0.02.
double base_learning_rate(const Config& config, bool has_batch_norm);

}  // namespace convoy
