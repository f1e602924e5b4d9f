// model_builder.cpp — what follows what is checked here, so that layers may trust their shapes.
#include "src/model/model_builder.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "src/base/random.h"
#include "src/base/text.h"
#include "src/model/layers/layers.h"
#include "src/model/layers/text.h"

namespace convoy {
namespace {

// A network beyond these is a mistake in its text. They also keep every product inside its type.
constexpr size_t kMaxActivation = size_t(1) << 28;  // floats of one image after one layer
constexpr size_t kMaxParams = size_t(1) << 31;
constexpr int kMaxPoolWindow = 256;  // argmax is a byte

std::string image_text(Shape x) { return cat(x.H, "x", x.W, "x", x.C); }

class Builder {
 public:
    Builder(const ModelText& text, const ModelOptions& options, int size, Params& params)
        : text_(text), options_(options), params_(params), shape_{1, size, size, 3} {
        parse_freeze();
    }

    Chain build() {
        Chain chain = build_chain(text_.layers, "");
        check_end();
        check_freeze();
        return chain;
    }

 private:
    template <class... Parts>
    [[noreturn]] void error(const LayerText& layer, const Parts&... parts) const {
        fail_at(text_.origin, layer.line, parts...);
    }

    Chain build_chain(const std::vector<LayerText>& layers, const std::string& prefix) {
        Chain chain;
        for (const LayerText& layer : layers) {
            if (layer.kind == "relu" && !options_.plain && chain.last() &&
                !chain.last()->ends_in_relu() && chain.last()->fuse_relu())
                continue;
            std::unique_ptr<Layer> made = build_layer(layer, prefix);
            shape_ = made->output(shape_);
            if (shape_.elems() > kMaxActivation)
                error(layer, "the output of '", layer.kind, "' is ", image_text(shape_),
                      ", more than ", kMaxActivation, " numbers an image");
            chain.append(std::move(made));
        }
        if (!options_.plain) chain.fuse();
        return chain;
    }

    std::unique_ptr<Layer> build_layer(const LayerText& layer, const std::string& prefix) {
        const std::string name = prefix + layer.name;
        if (layer.kind == "conv2d") return build_conv2d(layer, name);
        if (layer.kind == "linear") return build_linear(layer, name);
        if (layer.kind == "batchnorm") return build_batch_norm(layer, name);
        if (layer.kind == "maxpool") {
            check_image(layer);
            check_window(layer);
            const Window& w = layer.window;
            if (w.pad_h > w.size_h / 2 || w.pad_w > w.size_w / 2)
                error(layer, "'pad' of maxpool may be at most half of 'size', ",
                      pair_text(w.size_h / 2, w.size_w / 2));
            if (w.size_h * w.size_w > kMaxPoolWindow)
                error(layer, "the window of maxpool has ", w.size_h * w.size_w, " pixels; at most ",
                      kMaxPoolWindow);
            return make_max_pool(w);
        }
        if (layer.kind == "avgpool") {
            check_image(layer);
            return make_avg_pool(layer.rows, layer.columns);
        }
        if (layer.kind == "dropout")
            return make_dropout(layer.drop, uint16_t(kLayer + dropouts_++));
        if (layer.kind == "residual") return build_residual(layer, name);
        if (layer.kind == "flatten") {
            if (shape_.H * shape_.W > 1) flat_ = shape_, flat_line_ = layer.line;
            return make_flatten();
        }
        ENSURE(layer.kind == "relu", "a layer of kind ", layer.kind);
        return make_relu();
    }

    std::unique_ptr<Layer> build_conv2d(const LayerText& layer, const std::string& name) {
        check_image(layer);
        check_window(layer);
        const Window& window = layer.window;
        const int K = out_of(layer);
        const Shape shape{K, window.size_h, window.size_w, shape_.C};
        const size_t pixels = size_t(window.size_h) * window.size_w;
        const auto [w, b] = add_weights(layer, name, shape, double(K) * double(pixels));
        return make_conv2d(window, *w, b);
    }

    std::unique_ptr<Layer> build_linear(const LayerText& layer, const std::string& name) {
        if (shape_.H * shape_.W > 1)
            error(layer, "'linear' needs a row, but its input is ", image_text(shape_),
                  "; put 'flatten' or 'avgpool 1' before it");
        const int K = out_of(layer);
        const auto [w, b] = add_weights(layer, name, {K, 1, 1, shape_.C}, K);
        w->flat = flat_;
        flat_ = {};
        return make_linear(*w, b);
    }

    std::unique_ptr<Layer> build_batch_norm(const LayerText& layer, const std::string& name) {
        const bool frozen = freezes(name);
        const auto row = [&](const char* part, float start, bool running, bool joined) -> Param& {
            return add(layer, {.name = name + part,
                               .shape = {1, 1, 1, shape_.C},
                               .init = {Init::kConstant, start},
                               .running = running,
                               .frozen = frozen,
                               .joined = joined,
                               .flat = flat_});
        };
        Param& gamma = row(".weight", 1, false, false);
        Param& beta = row(".bias", 0, false, false);
        Param& mean = row(".running_mean", 0, true, false);
        Param& var = row(".running_var", 1, true, true);
        return make_batch_norm(gamma, beta, mean, var);
    }

    std::unique_ptr<Layer> build_residual(const LayerText& layer, const std::string& name) {
        check_image(layer);
        const Shape input = shape_;
        Chain main = build_chain(layer.main, name + ".");
        const Shape from_main = shape_;
        shape_ = input;
        if (flat_.N) error(layer, "'flatten' cannot stand inside of a residual");
        Chain shortcut = build_chain(layer.shortcut, name + ".");
        if (flat_.N) error(layer, "'flatten' cannot stand inside of a residual");
        if (shape_ != from_main)
            error(layer, "the layers of residual '", name, "' make ", image_text(from_main),
                  ", its ",
                  layer.shortcut.empty() ? "input (there is no shortcut) is " : "shortcut makes ",
                  image_text(shape_), "; expected the same shape");
        shape_ = input;
        return make_residual(std::move(main), std::move(shortcut), !options_.plain);
    }

    void check_image(const LayerText& layer) const {
        if (flat_.N)
            error(layer, "'", layer.kind, "' needs an image, but line ", flat_line_,
                  " flattened it");
    }

    void check_window(const LayerText& layer) const {
        const Window& w = layer.window;
        if (shape_.H + 2 * w.pad_h < w.size_h || shape_.W + 2 * w.pad_w < w.size_w)
            error(layer, "the input of '", layer.kind, "' is ", image_text(shape_),
                  ", too small for a window of ", w.size_h, "x", w.size_w, " with pad ",
                  pair_text(w.pad_h, w.pad_w));
    }

    // Output channels; remembers which layer makes the last ones.
    int out_of(const LayerText& layer) {
        last_out_ = &layer;
        return layer.out ? layer.out : options_.classes;
    }

    Param& add(const LayerText& layer, Param row) {
        elems_ += row.shape.elems();
        if (elems_ > kMaxParams)
            error(layer, "the model has more than ", kMaxParams, " parameters with this layer");
        const auto [taken, fresh] = lines_.emplace(row.name, layer.line);
        if (!fresh)
            error(layer, "the name '", layer_name(row.name), "' is taken by line ", taken->second);
        return params_.add(std::move(row));
    }

    // The rows of a convolution or linear layer, with torchvision's start values.
    std::pair<Param*, Param*> add_weights(const LayerText& layer, const std::string& name,
                                          Shape shape, double fan_out) {
        const double fan_in = double(shape.row_elems());
        LayerText::InitRule rule = layer.init;
        if (rule == LayerText::InitRule::kDefault)
            rule =
                layer.kind == "conv2d" ? LayerText::InitRule::kHe : LayerText::InitRule::kUniform;
        Init weight{Init::kNormal, layer.deviation}, bias{Init::kConstant, 0};
        if (rule == LayerText::InitRule::kHe) weight.value = float(std::sqrt(2 / fan_out));
        if (rule == LayerText::InitRule::kUniform)
            weight = bias = {Init::kUniform, float(1 / std::sqrt(fan_in))};
        const bool frozen = freezes(name);
        Param& w = add(layer, {.name = name + ".weight",
                               .shape = shape,
                               .init = weight,
                               .decay = true,
                               .frozen = frozen,
                               .dims = layer.kind == "conv2d" ? 4 : 2});
        if (!layer.bias) return {&w, nullptr};
        return {&w, &add(layer, {.name = name + ".bias",
                                 .shape = {1, 1, 1, shape.N},
                                 .init = bias,
                                 .frozen = frozen})};
    }

    void check_end() const {
        if (text_.layers.empty()) fail(text_.origin, " has no layers after 'input'");
        const LayerText& last = text_.layers.back();
        if (!last_out_ || last_out_->out)
            error(last_out_ ? *last_out_ : last,
                  "the last layer with 'out' must have 'out classes'; expected, for instance, "
                  "'linear fc out classes' at the end");
        if (shape_.H * shape_.W > 1 || shape_.C != options_.classes)
            error(last, "the model ends with ", image_text(shape_),
                  " numbers an image; expected 1x1x", options_.classes,
                  ", one a class (put 'avgpool 1' at the end)");
    }

    // ---- freezing ----------------------------------------------------------------------------

    void parse_freeze() {
        const std::string& freeze = options_.freeze;
        if (freeze.empty()) return;
        const char* end = freeze.data() + freeze.size();
        const auto [stop, status] = std::from_chars(freeze.data(), end, freeze_first_);
        if (status == std::errc() && stop == end && freeze_first_ >= 0) return;
        freeze_first_ = -1;
        for (const std::string& prefix : split(freeze, ',')) {
            if (prefix.empty()) fail("--freeze ", freeze, " has an empty name");
            prefixes_[prefix] = false;
        }
    }

    // Whether the layer is frozen; called once for each layer with rows, in order.
    bool freezes(const std::string& name) {
        names_.push_back(name);
        bool frozen = int(names_.size()) <= freeze_first_;
        for (auto& [prefix, matched] : prefixes_)
            if ((name + ".").starts_with(prefix)) frozen = matched = true;
        frozen_ += frozen;
        return frozen;
    }

    void check_freeze() const {
        std::vector<std::string> some = names_;
        if (some.size() > 8) some.resize(8), some.push_back("…");
        for (auto& [prefix, matched] : prefixes_)
            if (!matched)
                fail("--freeze: no layer's name begins with '", prefix, "'; the layers are ",
                     join_text(some));
        if (freeze_first_ > int(names_.size()))
            fail("--freeze ", freeze_first_, ": the model has only ", names_.size(),
                 " layers with parameters");
        if (!names_.empty() && frozen_ == names_.size())
            fail("--freeze ", options_.freeze, " leaves nothing to train: it matches all ",
                 names_.size(), " layers");
    }

    const ModelText& text_;
    const ModelOptions& options_;
    Params& params_;
    Shape shape_;  // of one image, after the layers so far
    Shape flat_;   // what was flattened since the last linear; N is 0 if nothing was
    int flat_line_ = 0, dropouts_ = 0;
    size_t elems_ = 0;
    const LayerText* last_out_ = nullptr;
    std::map<std::string, int> lines_;  // of the rows' names
    int freeze_first_ = 0;
    std::map<std::string, bool> prefixes_;  // of --freeze, and whether they matched
    std::vector<std::string> names_;
    size_t frozen_ = 0;
};

}  // namespace

Chain build_layers(const ModelText& text, const ModelOptions& options, int size, Params& params) {
    return Builder(text, options, size, params).build();
}

}  // namespace convoy
