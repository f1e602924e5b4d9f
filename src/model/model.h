// model.h — a network as a list of layers, built from a few lines of text. model_text.h describes
// the grammar of the text; models*.cpp hold the built-in networks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/base/input_size.h"
#include "src/model/layer.h"

namespace convoy {

// A range of top-level layers: the stage of one rank in a pipeline (src/step/pipeline.cpp).
struct LayerRange {
    size_t first = 0, end = SIZE_MAX;
};

struct ModelOptions {
    std::string name = {};  // built-in name or path of a file
    int classes = 3;
    InputSize size{0, 0, 0};  // height 0, channels 0: as the model's text says
    uint64_t seed = 0;
    std::string freeze = {};  // "" | first N layers with parameters | prefixes of names, by commas
    bool head_only = false;   // freezes all layers except the layer with 'out classes'
    bool plain = false;       // no fusion, no shared memory, nothing in place (for tests)
    LayerRange stage = {};
    bool draw_all = false;  // draws the start values of other stages too
};

// A line of the table of the network.
struct LayerLine {
    std::string name;     // "layer1.0.conv1", empty if there are no params
    std::string what;     // "conv2d 64 7x7 stride 2 + relu"
    Shape input, output;  // of one image
    size_t params = 0;
    double flops = 0;  // forward for one image; a multiply-add counts as two
    bool frozen = false;
    size_t layer = SIZE_MAX;  // Layer::number
};

// A layer that is not part of another layer.
struct TopLayer {
    std::string kind, name;  // name: the first name in its lines, or empty
    Shape input;             // of one image
    bool may_begin;          // whether a stage may begin with it
    double flops = 0;        // forward for one image
};

class Model {
 public:
    // Parses the text, adds the params, allocates and initialises the arenas. Throws Error with
    // line, word, and what was expected. A stage has the arenas of the whole model, but touches
    // only its part. params, weights: shared with another model of the same text and options.
    Model(const std::string& text, const ModelOptions& options, Backend& backend,
          std::shared_ptr<Params> params = nullptr, float* weights = nullptr);
    // Models that share the params and have separate activations: of the same layers, or of others.
    std::unique_ptr<Model> twin() const { return part(options_.stage); }
    std::unique_ptr<Model> part(LayerRange layers) const {
        ModelOptions options = options_;
        options.stage = layers;
        return std::make_unique<Model>(text_, options, backend_, params_);
    }
    // A model on `backend` that shares the weights (in host memory), but no gradients.
    std::unique_ptr<Model> replica(Backend& backend) const {
        return std::make_unique<Model>(text_, options_, backend, nullptr, params_->weights);
    }

    InputSize input() const { return input_; }
    const InputStatistics& statistics() const { return statistics_; }
    // Whether any batch norm has statistics that are not frozen.
    bool has_batch_norm() const { return params_->updated_size > params_->trained_size; }
    Params& params() { return *params_; }
    const std::vector<TopLayer>& outline() const { return outline_; }    // of the whole model
    bool ends() const { return options_.stage.end == outline_.size(); }  // has the last layer

    // Plans memory for passes of up to `images`, once. Returns the bytes of activations.
    size_t plan(int images, bool training);
    // Sets the largest batch. A batch of more than planned() images is cut into micro-batches.
    void expect(int max_batch) { max_batch_ = max_batch; }

    // x: N×H×W×C as in input() (a later stage: as in outline()), in device memory, N ≤ planned(),
    // of type Backend::activations(), valid until the backward pass is over. Returns the logits
    // N×1×1×classes (floats), or the output of a stage, valid until the backward or next pass.
    Tensor forward(Tensor x, const Pass& pass);
    int planned() const { return planned_; }
    int max_batch() const { return std::max(max_batch_, planned_); }
    // The planned buffer for the gradient of the result of forward().
    Tensor dlogits(int N);
    // From dlogits to the gradients; calls listener.ready(param) once for each trained param, in
    // backward order. Returns dx, or an empty Tensor in the first stage.
    Tensor backward(Tensor dlogits, const Pass& pass, GradListener& listener);

    // For passes that record their layers on `track`.
    LayerTrace trace(Tracer& tracer, Track* track) const {
        return {track, tracer.layers(names_), names_.size()};
    }

    // The table of the network: a line per layer with shapes and GFLOP, then the totals.
    std::string table() const;
    double forward_flops() const;  // for one image; a multiply-add counts as two
    const std::vector<LayerLine>& lines() const { return lines_; }
    std::string layer_of(const Param& param) const;  // "fc (linear 1000)", for messages

 private:
    const std::string text_;
    ModelOptions options_;
    Backend& backend_;
    const std::shared_ptr<Params> params_;
    Layers layers_;  // of the stage
    std::vector<TopLayer> outline_;
    std::vector<LayerLine> lines_;
    std::vector<std::string> names_;  // of all layers, nested layers too
    MemoryPlan plan_;
    InputSize input_;
    InputStatistics statistics_;
    int max_batch_ = 0, planned_ = 0;
    bool training_ = false;
    Value logits_, dlogits_;  // logits_: a copy as floats, if the last layer's output is bf16
};

// The text of a built-in model, or of the file `name`. Throws Error with a list of the names.
std::string model_text(const std::string& name);
std::vector<std::string> built_in_models();

}  // namespace convoy
