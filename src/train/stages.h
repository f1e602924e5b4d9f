// stages.h — where a model is cut for a pipeline (pipeline.h): the first layer of each stage. The
// slowest stage sets the pace, so the layers are timed, and cut where the longest stage is as short
// as it can be.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/config/config.h"
#include "src/model/model.h"

namespace convoy {

using NewBackend = std::function<std::unique_ptr<Backend>()>;
// Seconds of each top-level layer, forward and backward, for `images` images. Each layer has a
// backend of its own, so that a model too large for this machine can be timed.
std::vector<double> time_layers(const std::string& text, ModelOptions options,
                                const NewBackend& new_backend, int images);

// Cuts the layers into `stages` ranges with the smallest maximum of their sums. Throws Error if
// there are fewer places to cut.
std::vector<size_t> balanced_cuts(const std::vector<TopLayer>& outline,
                                  const std::vector<double>& seconds, int stages);

// CONVOY_SPLIT, names by commas: a stage ends with each of them. "features.8", "layer2" (all of its
// layers), or "conv4": the fourth convolution outside blocks, if no layer has this name. Throws
// Error that lists the names.
std::vector<size_t> named_cuts(const std::string& split, const std::vector<TopLayer>& outline,
                               int stages);

struct StagePlan {
    std::vector<size_t> cuts;  // the first layer of each stage
    // "stages 0 to conv3 (52 %), 1 to fc (48 %) of the time; 4 micro-batches of 16 images"
    std::string text;
    double efficiency;  // of the ranks' compute, with the bubble and the longest stage
};
// For `replicas` pipelines; by CONVOY_SPLIT, or else balanced_cuts. Throws Error.
StagePlan plan_stages(const std::string& text, ModelOptions options, const NewBackend& new_backend,
                      const Config& config, int replicas);

// The most images of a micro-batch. Micro-batches are cut between groups of batch norm.
int stage_images(const Config& config, int replicas, bool batch_norm);

// The top-level layers of stage s. cuts: the first layer of each stage.
LayerRange stage_of(const std::vector<size_t>& cuts, int s);

}  // namespace convoy
