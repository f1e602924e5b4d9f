// model_builder.cpp — see model_builder.h. Shapes are checked here, so layers need not check them.
#include "src/model/model_builder.h"

#include <cmath>

#include "src/model/layers/layers.h"

namespace convoy {

// A larger network is a mistake in its text. The limits also keep products within their types.
static constexpr size_t kMaxActivation = size_t(1) << 28;  // numbers of a layer's output per image
static constexpr size_t kMaxParams = size_t(1) << 31;

Builder::Builder(const ModelText& text, const ModelOptions& options, InputSize input,
                 Params& params, std::vector<LayerLine>& lines, Backend& backend)
    : backend(backend),
      fuses(!options.plain),
      shape{1, input.H, input.W, input.C},
      text_(text),
      options_(options),
      params_(params),
      lines_(lines),
      freeze_(options.freeze) {}

Layers Builder::build() {
    Layers layers = build(text_.layers);
    check_end();
    freeze_.check();
    return layers;
}

// The activation of `next` that a layer applies itself, or none.
static Activation fused(const LayerKind& layer, const LayerKind& next) {
    const Activation act{next.activation};
    const bool fits = &layer == &kBatchNorm ? act.fits_norm() : layer.takes_relu && &next == &kRelu;
    return {fits ? act.kind : Activation::kNone};
}

std::string Fusion::act_text() const {
    for (const LayerKind* kind : kLayerKinds)
        if (act && kind->activation == act.kind) return cat(" + ", kind->name);
    return "";
}

Layers Builder::build(std::span<const LayerText> texts) {
    ++depth_;
    Layers layers;
    bool after_relu = false;  // x is the output of a relu, or of sign-keeping layers after a relu
    for (size_t i = 0; i < texts.size(); ++i) {
        const LayerText& text = texts[i];
        const LayerKind& kind = *find_kind(text.kind);
        const bool last = i + 1 == texts.size();
        const size_t line = lines_.size();
        // A stage does not begin with a batch norm: the layer before may compute its statistics.
        if (depth_ == 1) outline.push_back({kind.name, "", shape, &kind != &kBatchNorm});
        Fusion fusion{.floats = depth_ == 1 && last};
        if (fuses) {
            fusion.before = layers.empty() ? nullptr : layers.back().get();
            fusion.mask_dx = kind.masks_dx && after_relu;
            if (!last) fusion.act = fused(kind, *find_kind(texts[i + 1].kind));
            i += bool(fusion.act);
            const bool ends_in_relu = &kind == &kRelu || (kind.takes_relu && fusion.act) ||
                                      (&kind == &kResidual && text.relu);
            fusion.dy_is_masked = ends_in_relu && reader_masks(texts.subspan(i + 1));
            after_relu = ends_in_relu || (after_relu && kind.keeps_sign);
        }
        names.push_back(cat(text.kind, text.name.empty() ? "" : " ", prefix, text.name));
        const size_t number = names.size() - 1;
        layers.push_back(kind.make(text, fusion, *this));
        layers.back()->number = number;
        for (LayerLine& made : std::span(lines_).subspan(line)) {
            if (made.layer == SIZE_MAX) made.layer = number;  // else an inner one
            layers.back()->flops += made.flops;
            if (depth_ == 1 && outline.back().name.empty()) outline.back().name = made.name;
        }
        if (depth_ == 1) outline.back().flops = layers.back()->flops;
        if (shape.elems() > kMaxActivation)
            error(text, "the output of '", text.kind, "' is ", image_text(shape), ", more than ",
                  kMaxActivation, " numbers per image");
    }
    --depth_;
    return layers;
}

// Whether the layer that reads a relu's output masks its dx; layers that keep the sign are skipped.
bool Builder::reader_masks(std::span<const LayerText> readers) const {
    for (const LayerText& text : readers) {
        const LayerKind& kind = *find_kind(text.kind);
        if (!kind.keeps_sign) return kind.masks_dx;
    }
    return false;
}

void Builder::check_image(const LayerText& layer) const {
    if (!flat.empty())
        error(layer, "'", layer.kind, "' needs an image, but line ", flat_line, " flattened it");
}

Window Builder::window_of(const LayerText& layer) const {
    check_image(layer);
    const Window w = convoy::window_of(layer, shape);
    if (shape.H + 2 * w.pad_h + w.extra_h < w.extent_h() ||
        shape.W + 2 * w.pad_w + w.extra_w < w.extent_w())
        error(layer, "the input of '", layer.kind, "' is ", image_text(shape),
              ", too small for a window of ", w.extent_h(), "x", w.extent_w(), " with pad ",
              pair_text(w.pad_h, w.pad_w));
    return w;
}

Window Builder::add_pool(const LayerText& layer) {
    constexpr int kMaxPixels = 256;  // argmax of maxpool is a byte; avgpool allocates weights
    const Window w = window_of(layer);
    if (w.size_h * w.size_w > kMaxPixels)
        error(layer, "the window of ", layer.kind, " has ", w.size_h * w.size_w,
              " pixels; at most ", kMaxPixels);
    if (w.pad_h > w.size_h / 2 || w.pad_w > w.size_w / 2)
        error(layer, "'pad' of ", layer.kind, " may be at most half of 'size', ",
              pair_text(w.size_h / 2, w.size_w / 2));
    add_line(cat(layer.kind, " ", window_text(w)),
             {1, w.out_h(shape.H), w.out_w(shape.W), shape.C});
    return w;
}

int Builder::out_of(const LayerText& layer) {
    last_out_ = &layer;
    return layer.out ? layer.out : options_.classes;
}

Param& Builder::add(const LayerText& layer, const char* part, Param param) {
    const std::string name = prefix + layer.name;
    const bool is_head = &layer == last_out_ && layer.out == 0;
    if (line_.name != name) {
        line_.name = name;
        line_.frozen = freeze_.freezes(name, layer.kind) || (options_.head_only && !is_head);
    }
    param.name = *part ? cat(name, ".", part) : name;
    param.frozen = line_.frozen;
    param.layer = outline.size() - 1;
    elems_ += param.shape.elems();
    if (!param.running) line_.params += param.shape.elems();
    if (elems_ > kMaxParams)
        error(layer, "the model has more than ", kMaxParams, " parameters with this layer");
    const auto [taken, fresh] = line_of_.emplace(param.name, layer.line);
    if (!fresh) error(layer, "the name '", name, "' is taken by line ", taken->second);
    return params_.add(std::move(param));
}

void Builder::add_weights(const LayerText& layer, Shape shape, int dims, Param*& w, Param*& b) {
    using Rule = LayerText::InitRule;
    Rule rule = layer.init;
    if (rule == Rule::kDefault) rule = dims == 4 ? Rule::kHe : Rule::kUniform;
    Init weight{Init::kNormal, layer.deviation}, bias{Init::kConstant, 0};
    if (rule == Rule::kHe)
        weight.value = float(std::sqrt(2 / (double(shape.N) * shape.H * shape.W)));
    if (rule == Rule::kHeIn) weight.value = float(std::sqrt(2 / double(shape.row_elems())));
    if (rule == Rule::kUniform)
        weight = bias = {Init::kUniform, float(1 / std::sqrt(double(shape.row_elems())))};
    if (rule == Rule::kWhiten) {
        if (&layer != &text_.layers.front() || dims != 4 ||
            size_t(shape.N) != 2 * shape.row_elems() || layer.window.dilated())
            error(layer, "'init whiten' fits only a first conv2d without dilation, with two ",
                  "filters per number of its window: here 'out ", 2 * shape.row_elems(), "'");
        weight = {Init::kWhiten, float(1 / std::sqrt(double(shape.row_elems())))};
    }
    w = &add(layer, "weight", {.shape = shape, .init = weight, .decay = true, .dims = dims});
    b = layer.bias ? &add(layer, "bias", {.shape = {1, 1, 1, shape.N}, .init = bias}) : nullptr;
}

void Builder::add_line(const std::string& what, Shape output, double flops) {
    line_.input = shape;
    shape = line_.output = output;
    line_.what = what;
    line_.flops = flops;
    lines_.push_back(std::exchange(line_, {}));
}

void Builder::check_end() const {
    if (text_.layers.empty()) fail(text_.origin, " has no layers after 'input'");
    const LayerText& last = text_.layers.back();
    if (!last_out_ || last_out_->out)
        error(last_out_ ? *last_out_ : last,
              "the last layer with 'out' must have 'out classes'; expected, for instance, "
              "'linear fc out classes' at the end");
    if (shape.H * shape.W > 1 || shape.C != options_.classes)
        error(last, "the model ends with ", image_text(shape), " numbers per image; expected 1x1x",
              options_.classes, ", one per class (put 'avgpool 1' at the end)");
}

}  // namespace convoy
