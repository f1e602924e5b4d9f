// model.h — a network as a list of layers, built from a few lines of text.
//
// The language and its grammar are described at the top of model_text.h; the built-in networks are
// written in it (models.cpp).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/base/input_size.h"
#include "src/model/layer.h"

namespace convoy {

// A stretch of the layers of the outline: what one rank of a pipeline runs (pipeline.h).
struct LayerRange {
    size_t first = 0, end = SIZE_MAX;
};

struct ModelOptions {
    std::string name = {};  // built-in name or path of a file
    int classes = 3;
    InputSize size{0, 0, 0};  // height 0: the model's own; channels 0: the model's own
    uint64_t seed = 0;
    std::string freeze = {};  // "" | first N layers with parameters | prefixes of names, by commas
    bool head_only = false;   // all layers are frozen but that with 'out classes'
    bool plain = false;       // no fusion, no sharing of memory, nothing in place (to test against)
    LayerRange stage = {};
    bool draw_all = false;  // also the start values of other stages
};

// A line of the table of the network.
struct LayerLine {
    std::string name;  // "layer1.0.conv1", empty where there are no params
    std::string what;  // "conv2d 64 7x7 stride 2 + relu"
    Shape output;      // of one image
    size_t params = 0;
    double flops = 0;  // of one image forward; multiply and add are two
    bool frozen = false;
};

// A layer that is not part of another one.
struct TopLayer {
    std::string kind, name;  // name: of the first of its lines that has one; else empty
    Shape input;             // of one image
    bool may_begin;          // whether a stage may begin with it
    double flops = 0;        // of one image forward
};

class Model {
 public:
    // Parses and checks the text, adds the params, allocates and fills the arenas. `text` is what
    // the coordinator hands to the ranks: the same text gives the same model. Throws Error naming
    // line and word, and what was expected. A model of a stage has the arenas of the whole one, but
    // touches no more than its own part of them. params, weights: those of another model of the
    // same text and options, in place of new ones.
    Model(const std::string& text, const ModelOptions& options, Backend& backend,
          std::shared_ptr<Params> params = nullptr, float* weights = nullptr);
    // With the same params and activations of its own.
    std::unique_ptr<Model> twin() const {
        return std::make_unique<Model>(text_, options_, backend_, params_);
    }
    // With the same weights, in host memory; gradients and activations of its own, on `backend`.
    std::unique_ptr<Model> replica(Backend& backend) const {
        return std::make_unique<Model>(text_, options_, backend, nullptr, params_->weights);
    }

    InputSize input() const { return input_; }
    // Whether any batch norm has statistics that are not frozen.
    bool has_batch_norm() const { return params_->updated_size > params_->trained_size; }
    Params& params() { return *params_; }
    const std::vector<TopLayer>& outline() const { return outline_; }    // of the whole model
    bool ends() const { return options_.stage.end == outline_.size(); }  // whether it makes logits

    // Plans memory for passes of up to so many images; once, before the first pass.
    // training: with backward pass. Returns the bytes of activations.
    size_t plan(int images, bool training);
    // Batches are larger than what passes are planned for, here or in twins.
    void expect(int max_batch) { max_batch_ = max_batch; }

    // x: N×H×W×C, as input() says (of a later stage: as the outline does), in device memory,
    // N ≤ planned(), of Backend::activations(); it must stay until the backward pass is over.
    // Returns the logits N×1×1×classes: floats, good until the backward pass; of a stage before the
    // last one: what it makes, good until the next pass.
    Tensor forward(Tensor x, const Pass& pass);
    int planned() const { return planned_; }
    int max_batch() const { return std::max(max_batch_, planned_); }  // of inputs
    // Planned buffer for the gradient of what forward() returns, an activation.
    Tensor dlogits(int N);
    // From dlogits to the gradients; listener.ready(param) in backward order, once for each that is
    // trained. Returns dx of a later stage than the first, else an empty Tensor.
    Tensor backward(Tensor dlogits, const Pass& pass, GradListener& listener);

    // For passes that are to be written down on `track`.
    LayerTrace trace(Tracer& tracer, Track* track) const {
        return {track, tracer.layers(names_), names_.size()};
    }

    // The table of the network: a line a layer with shapes and GFLOP, and the totals.
    std::string table() const;
    double forward_flops() const;  // of one image, multiply and add counted as two
    const std::vector<LayerLine>& lines() const { return lines_; }
    // Of the layer whose weights these are, as above; 0 of a bias or a scale.
    double forward_flops(const Param& weights) const;
    std::string layer_of(const Param& param) const;  // "fc (linear 1000)", for messages

 private:
    const std::string text_;
    ModelOptions options_;
    Backend& backend_;
    const std::shared_ptr<Params> params_;
    Layers layers_;  // of the stage
    std::vector<TopLayer> outline_;
    std::vector<LayerLine> lines_;
    std::vector<std::string> names_;  // of layers and those inside of them
    MemoryPlan plan_;
    InputSize input_;
    int max_batch_ = 0, planned_ = 0;
    bool training_ = false;
    Value logits_, dlogits_;  // logits_: a copy as floats, where the last layer makes bf16
};

// Text of a built-in model, or of the file `name`; throws Error listing the names there are.
std::string model_text(const std::string& name);
std::vector<std::string> built_in_models();
// Input size that the text names ("input 224"); channels are 0 where it names none.
InputSize model_input_size(const std::string& text);

}  // namespace convoy
