// stages.h — where a model is cut for a pipeline (pipeline.h): the first layer of each stage.
//
// A stage takes its time for each piece of a batch, and the slowest one sets the pace. So the
// layers are timed, and cut where the longest stage is as short as it can be.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/model/model.h"
#include "src/train/pipeline.h"

namespace convoy {

using NewBackend = std::function<std::unique_ptr<Backend>()>;
// Seconds of each top-level layer, forward and backward, for `images` images. Each layer is planned
// and run by itself on a backend of its own, so that a model too large for this machine can be
// timed.
std::vector<double> time_layers(const std::string& text, ModelOptions options,
                                const NewBackend& new_backend, int images);

// Into `stages` stretches with the smallest maximum of their sums. Throws Error where there are
// fewer places to cut.
std::vector<size_t> balanced_cuts(const std::vector<TopLayer>& outline,
                                  const std::vector<double>& seconds, int stages);

// CONVOY_SPLIT: "features.8", "layer2" (all of them) or, where no name is like that, "conv4" (the
// fourth convolution that is not in a block), by commas: a stage ends with each. Throws Error that
// names what there is.
std::vector<size_t> named_cuts(const std::string& split, const std::vector<TopLayer>& outline,
                               int stages);

struct StagePlan {
    std::vector<size_t> cuts;  // the first layer of each stage
    std::string
        text;  // "stages 0 to conv3 (52 %), 1 to fc (48 %) of the time; 4 pieces of 16 images"
    double efficiency;  // of the ranks' compute, with the bubble and the longest stage
    // Of a step, without network: rounds = pieces + stages − 1, each as long as a piece takes the
    // longest stage (0 with `split`) and the widest cut.
    int64_t rounds;
    double round_seconds;
    size_t round_bytes;
};
// For `replicas` pipelines. split: CONVOY_SPLIT, or "": as balanced_cuts. Throws Error.
StagePlan plan_stages(const std::string& text, ModelOptions options, const NewBackend& new_backend,
                      const std::string& split, const PipelineOptions& pipeline, int replicas);

// The top-level layers of stage s of those that begin with `cuts`.
LayerRange stage_of(const std::vector<size_t>& cuts, int s);

}  // namespace convoy
