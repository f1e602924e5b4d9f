// model_builder.h — from the parsed text to layers, parameters, and lines of the table.
//
// The builder walks the text and decides what is fused. The constructor of each layer (layers/*)
// checks its line, and adds its parameters and its line of the table.
#pragma once

#include <map>
#include <span>
#include <utility>

#include "src/model/freeze.h"
#include "src/model/model.h"
#include "src/model/model_text.h"

namespace convoy {

// What a layer computes for its neighbours in its own calls, and what they compute for it.
struct Fusion {
    bool relu = false;          // it computes the relu after it: y = max(0, …)
    bool dy_is_masked = false;  // the reader of y computes that relu's gradient
    bool mask_dx = false;       // x came out of a relu: it sets dx to 0 where x <= 0
    bool addend = false;        // it adds the shortcut of a residual block before its relu
    bool floats = false;        // it makes the logits: floats, whatever activations are
    Layer* before = nullptr;    // the layer that makes x, if it may be asked (take_statistics)

    const char* relu_text() const { return relu ? " + relu" : ""; }
};

inline std::string image_text(Shape x) { return cat(x.H, "x", x.W, "x", x.C); }

class Builder {
 public:
    // input: of the images, complete. Adds to params and to lines, the table.
    Builder(const ModelText& text, const ModelOptions& options, InputSize input, Params& params,
            std::vector<LayerLine>& lines, Backend& backend);

    // The whole network. Throws Error naming the line that does not fit those before it.
    Layers build();
    // Layers in order: a branch of a block. Updates `shape`.
    Layers build(std::span<const LayerText> texts);

    // ---- for the constructors of layers ------------------------------------------------------

    Backend& backend;
    const bool fuses;  // false: ModelOptions::plain
    Shape shape;       // of one image, after the layers so far
    // What was flattened since the last linear, H×W×C each, in the order of the row; in most cases
    // one. Empty if nothing was.
    std::vector<Shape> flat;
    int flat_line = 0;               // the line of that flatten
    int dropouts = 0;                // so far
    std::string prefix;              // of names: "layer1.0." in that residual block
    std::vector<TopLayer> outline;   // of the layers so far
    std::vector<std::string> names;  // of all layers, by Layer::number

    template <class... Parts>
    [[noreturn]] void error(const LayerText& layer, const Parts&... parts) const {
        fail_at(text_.origin, layer.line, parts...);
    }
    void check_image(const LayerText& layer) const;  // throws if it was flattened
    // The layer's window on the current shape, an image; throws if it exceeds it.
    Window window_of(const LayerText& layer) const;
    int out_of(const LayerText& layer);  // output channels

    // Adds the parameter "prefix NAME.part", frozen where --freeze says so.
    Param& add(const LayerText& layer, const char* part, Param param);
    // NAME.weight and, unless the text says no, NAME.bias, with torchvision's start values.
    // dims: of the weight in files. b is set to null if there is none.
    void add_weights(const LayerText& layer, Shape shape, int dims, Param*& w, Param*& b);
    // The layer's line in the table, with the parameters added since the line before. `output`, of
    // one image, is the shape from here on.
    void add_line(const std::string& what, Shape output, double flops = 0);

 private:
    bool reader_masks(std::span<const LayerText> readers) const;
    void check_end() const;

    const ModelText& text_;
    const ModelOptions& options_;
    Params& params_;
    std::vector<LayerLine>& lines_;
    LayerLine line_;  // of the current layer
    int depth_ = 0;   // of build() in build()
    size_t elems_ = 0;
    const LayerText* last_out_ = nullptr;
    std::map<std::string, int> line_of_;  // each parameter's name
    Freeze freeze_;
};

}  // namespace convoy
