// model_builder.h — from the parsed text to layers, parameters, and lines of the table. The builder
// decides which layers are fused. The constructor of each layer (layers/*) checks its line of the
// text, and adds its parameters and its line of the table.
#pragma once

#include <map>
#include <span>
#include <utility>

#include "src/base/text.h"
#include "src/model/model.h"
#include "src/model/model_text.h"

namespace convoy {

// Work that a layer does for its neighbours (fusion), and work that a neighbour does for it.
struct Fusion {
    Activation act = {Activation::kNone};  // this layer applies the activation layer after it
    bool dy_is_masked = false;             // the layer that reads y computes that relu's gradient
    bool mask_dx = false;     // x is the output of a relu: this layer sets dx to 0 where x <= 0
    bool addend = false;      // this layer adds the shortcut of a residual block before its relu
    bool floats = false;      // y is the logits: floats, whatever the type of activations
    Layer* before = nullptr;  // the layer before, for take_statistics; null: it may not be asked

    std::string act_text() const;  // " + relu", for the table
};

// --freeze: the first N layers with parameters, or layers by prefixes of their names; "batchnorm"
// stands for all layers of this kind, if there are any.
class Freeze {
 public:
    // "", "3", or "conv1,layer1."
    explicit Freeze(const std::string& option) : option_(option) {
        const auto number = to_number<size_t>(option);
        first_ = number.value_or(0);
        if (option.empty() || number) return;
        for (const std::string& prefix : split(option, ',')) {
            if (prefix.empty()) fail("--freeze ", option, " has an empty name");
            matched_[prefix] = prefix == "batchnorm";
        }
    }

    // Whether the layer is frozen. Must be called once for each layer with parameters, in order.
    bool freezes(const std::string& layer, const std::string& kind) {
        names_.push_back(layer);
        bool frozen = names_.size() <= first_;
        for (auto& [prefix, matched] : matched_)
            if ((layer + ".").starts_with(prefix) || kind == prefix) frozen = matched = true;
        frozen_ += frozen;
        return frozen;
    }

    // After the last layer: throws Error if a name is unknown or all layers are frozen.
    void check() const {
        for (auto& [prefix, matched] : matched_)
            if (!matched)
                fail("--freeze: no layer's name begins with '", prefix, "'; the layers are ",
                     some_of(names_));
        if (first_ > names_.size())
            fail("--freeze ", first_, ": the model has only ", names_.size(),
                 " layers with parameters");
        if (!names_.empty() && frozen_ == names_.size())
            fail("--freeze ", option_, " matches all ", frozen_, " layers; leave one to train");
    }

 private:
    const std::string option_;
    size_t first_ = 0;
    std::map<std::string, bool> matched_;  // prefix → whether a layer matched
    std::vector<std::string> names_;
    size_t frozen_ = 0;
};

inline std::string image_text(Shape x) { return cat(x.H, "x", x.W, "x", x.C); }

class Builder {
 public:
    // input: the size of the images, complete. Adds to params and to lines (the table).
    Builder(const ModelText& text, const ModelOptions& options, InputSize input, Params& params,
            std::vector<LayerLine>& lines, Backend& backend);

    // The whole network. Throws Error with the first line that does not fit the lines before it.
    Layers build();
    // A sequence of layers: a branch of a block. Updates `shape`.
    Layers build(std::span<const LayerText> texts);

    // ---- for the constructors of layers ------------------------------------------------------

    Backend& backend;
    const bool fuses;  // false: ModelOptions::plain
    Shape shape;       // of one image, after the layers so far
    // The images (H×W×C) flattened since the last linear layer: usually one, or none.
    std::vector<Shape> flat;
    int flat_line = 0;               // the line of that flatten
    int dropouts = 0;                // so far
    std::string prefix;              // of names: "layer1.0." inside that residual block
    std::vector<TopLayer> outline;   // of the layers so far
    std::vector<std::string> names;  // of all layers, by Layer::number

    template <class... Parts>
    [[noreturn]] void error(const LayerText& layer, const Parts&... parts) const {
        fail_at(text_.origin, layer.line, parts...);
    }
    void check_image(const LayerText& layer) const;  // throws if the input was flattened
    // The layer's window on the current shape; throws if it is larger than the image.
    Window window_of(const LayerText& layer) const;
    Window add_pool(const LayerText& layer);  // also adds the pool's line to the table
    int out_of(const LayerText& layer);       // output channels

    // Adds the parameter "prefix NAME.part" ("prefix NAME" if part is ""), frozen as by --freeze.
    Param& add(const LayerText& layer, const char* part, Param param);
    // Adds NAME.weight and NAME.bias; b = null if the text says `bias no`. dims: Param::dims.
    void add_weights(const LayerText& layer, Shape shape, int dims, Param*& w, Param*& b);
    // Adds a line to the table, with the parameters added since the last; `shape` = output.
    void add_line(const std::string& what, Shape output, double flops = 0);

 private:
    bool reader_masks(std::span<const LayerText> readers) const;
    void check_end() const;

    const ModelText& text_;
    const ModelOptions& options_;
    Params& params_;
    std::vector<LayerLine>& lines_;
    LayerLine line_;  // of the current layer
    int depth_ = 0;   // nesting of build()
    size_t elems_ = 0;
    const LayerText* last_out_ = nullptr;
    std::map<std::string, int> line_of_;  // of each parameter's name
    Freeze freeze_;
};

}  // namespace convoy
