// model.cpp — the network as a whole: planning, passes, and its table.
#include "src/model/model.h"

#include <fmt/format.h>

#include "src/base/text.h"
#include "src/model/model_builder.h"
#include "src/model/model_text.h"

namespace convoy {

static constexpr int kMaxSize = 8192;  // rows and columns of an image

Model::Model(const std::string& text, const ModelOptions& options, Backend& backend)
    : backend_(backend), plan_(!options.plain, backend.activations()) {
    const std::string origin = options.name.empty() ? "model" : options.name;
    const ModelText parsed = parse_model(text, origin);
    size_ = options.size ? options.size : parsed.input;
    if (size_ < 1 || size_ > kMaxSize)
        fail("--size cannot be ", size_, ": expected 1 to ", kMaxSize);
    ENSURE(options.classes > 0 && options.classes <= 1 << 20, options.classes, " classes");
    layers_ = build_layers(parsed, options, size_, params_);
    params_.allocate(backend, options.seed);
}

size_t Model::plan(int max_batch, bool training) {
    ENSURE(max_batch_ == 0, "planned twice");
    ENSURE(max_batch > 0, "a batch of ", max_batch);
    max_batch_ = max_batch;
    training_ = training;
    const Value input{-1, {max_batch, size_, size_, 3}, Keep::kValues, plan_.type()};
    if (Layer* last = layers_.last()) last->give_floats();
    const Value logits = layers_.plan_forward(input, plan_, training);
    plan_.tick();
    plan_.use(logits);
    if (logits.type != Type::kFloat32) {
        logits_ = plan_.make(logits.shape, Type::kFloat32);
        plan_.tick();
        plan_.use(logits_);
    }
    if (training) {
        dlogits_ = plan_.make(logits.shape);
        layers_.plan_backward(dlogits_, plan_, false);
    }
    plan_.place(backend_);
    layers_.bind(plan_, backend_);
    return plan_.block_bytes();
}

Tensor Model::forward(Tensor x, const Pass& pass) {
    ENSURE(x.N <= max_batch_, "a batch of ", x.N, ", planned for ", max_batch_);
    ENSURE(x.shape() == (Shape{x.N, size_, size_, 3}), "images of ", x.shape().text());
    ENSURE(x.type == plan_.type(), "images of ", name_of(x.type));
    ENSURE(training_ || !pass.training, "planned for evaluation only");
    params_.refresh(backend_);
    const Tensor y = layers_.forward(x, pass);
    if (logits_.buffer < 0) return y;
    const Tensor logits = plan_.at(logits_).first(y.N);
    backend_.copy(logits, y);
    return logits;
}

Tensor Model::dlogits(int N) {
    ENSURE(training_ && N <= max_batch_, N, " images, planned for ", max_batch_);
    return plan_.at(dlogits_).first(N);
}

void Model::backward(Tensor dlogits, const Pass& pass, GradListener& listener) {
    ENSURE(training_ && pass.training, "a backward pass in evaluation");
    layers_.backward(dlogits, pass, listener);
}

std::vector<LayerLine> Model::lines() const {
    std::vector<LayerLine> all;
    layers_.describe({1, size_, size_, 3}, all);
    return all;
}

double Model::forward_flops() const {
    double flops = 0;
    for (const LayerLine& line : lines()) flops += line.flops;
    return flops;
}

std::string Model::layer_of(const Param& row) const {
    const std::string name = layer_name(row.name);
    for (const LayerLine& line : lines())
        if (line.name == name) return cat(name, " (", line.what, ")");
    return name;
}

// "12,345,678"
static std::string with_commas(size_t n) { return cat(fmt::group_digits(n)); }

static std::string table_line(const std::string& name, const std::string& what,
                              const std::string& output, const std::string& params,
                              const std::string& gflop) {
    std::string line =
        fmt::format("{:<24.24} {:<38.38} {:>13} {:>12} {:>8}", name, what, output, params, gflop);
    return line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
}

std::string Model::table() const {
    std::string text = table_line("layer", "", "output", "parameters", "GFLOP");
    text += table_line("input", "", cat(size_, "x", size_, "x3"), "", "");
    for (const LayerLine& line : lines()) {
        const Shape y = line.output;
        text +=
            table_line(line.name, cat(line.what, line.frozen ? ", frozen" : ""),
                       cat(y.H, "x", y.W, "x", y.C), line.params ? with_commas(line.params) : "",
                       line.flops > 0 ? fmt::format("{:.3f}", line.flops / 1e9) : "");
    }
    const size_t all = params_.model_elems(), trained = params_.trained_elems();
    text += table_line("total", all == trained ? "" : cat(with_commas(trained), " trained"), "",
                       with_commas(all), fmt::format("{:.3f}", forward_flops() / 1e9));
    return text;
}

int model_input_size(const std::string& text) { return parse_model(text, "model").input; }

}  // namespace convoy
