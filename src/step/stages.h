// stages.h — where a model is cut for a pipeline (pipeline.cpp): the first layer of each stage. A
// pipeline is as fast as its slowest stage. So the layers are timed, and the cuts make the longest
// stage as short as possible.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/config/config.h"
#include "src/model/model.h"

namespace convoy {

using NewBackend = std::function<std::unique_ptr<Backend>()>;
// Seconds of each top-level layer, forward and backward, for `images` images. Each layer is timed
// on a backend of its own, because the whole model may be too large for this machine.
std::vector<double> time_layers(const std::string& text, ModelOptions options,
                                const NewBackend& new_backend, int images);

// Cuts the layers into `stages` ranges so that the largest sum of seconds in a range is minimal.
// Throws Error if there are fewer places to cut.
std::vector<size_t> balanced_cuts(const std::vector<TopLayer>& outline,
                                  const std::vector<double>& seconds, int stages);

// CONVOY_SPLIT is a list of names with commas. Each name ends a stage: "features.8", "layer2" (all
// of its layers), or "conv4" (the fourth convolution outside blocks, if no layer has this name).
// Throws Error that lists the names.
std::vector<size_t> named_cuts(const std::string& split, const std::vector<TopLayer>& outline,
                               int stages);

struct StagePlan {
    std::vector<size_t> cuts;  // the first layer of each stage
    // "stages 0 to conv3 (52 %), 1 to fc (48 %) of the time; 4 micro-batches of 16 images: at best
    // 80 % of 2 times one rank's speed"
    std::string text;
};
// Plans `pipelines` pipelines, cut by CONVOY_SPLIT if set, else by balanced_cuts. Throws Error.
StagePlan plan_stages(const std::string& text, ModelOptions options, const NewBackend& new_backend,
                      const Config& config, int pipelines);

// The most images of a micro-batch. Micro-batches are cut between groups of batch norm.
int stage_images(const Config& config, int pipelines, bool batch_norm);

// The top-level layers of stage s. cuts: the first layer of each stage.
LayerRange stage_of(const std::vector<size_t>& cuts, int s);

}  // namespace convoy
