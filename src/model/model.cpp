// model.cpp — the network as a whole: planning, passes, and its table.
#include "src/model/model.h"

#include <algorithm>

#include <fmt/format.h>

#include "src/model/model_builder.h"
#include "src/model/model_text.h"

namespace convoy {

Model::Model(const std::string& text, const ModelOptions& options, Backend& backend,
             std::shared_ptr<Params> params, float* weights)
    : text_(text),
      options_(options),
      backend_(backend),
      params_(params ? params : std::make_shared<Params>()),
      plan_(!options.plain, backend.activations()) {
    const std::string origin = options.name.empty() ? "model" : options.name;
    const ModelText parsed = parse_model(text, origin);
    // A model is for RGB unless its text or --size says something else.
    const int channels = parsed.input.or_channels(3).C;
    input_ = (options.size.H ? options.size : parsed.input).or_channels(channels);
    statistics_ = parsed.statistics.of_channels(input_.C);
    ENSURE(options.classes > 0 && options.classes <= 1 << 20, options.classes, " classes");
    Builder builder(parsed, options, input_, *params_, lines_, backend);
    layers_ = builder.build();
    outline_ = std::move(builder.outline);
    names_ = std::move(builder.names);
    auto& [first, end] = options_.stage;
    end = std::min(end, layers_.size());
    ENSURE(first < end, "layers ", first, " to ", end);
    layers_.erase(layers_.begin() + ptrdiff_t(end), layers_.end());
    layers_.erase(layers_.begin(), layers_.begin() + ptrdiff_t(first));
    if (params) return;
    for (Param* param : params_->all()) param->own = param->layer >= first && param->layer < end;
    params_->allocate(backend, options.seed, options.draw_all, weights);
}

size_t Model::plan(int images, bool training) {
    ENSURE(planned_ == 0, "planned twice");
    ENSURE(images > 0, "a batch of ", images);
    planned_ = images;
    training_ = training;
    Shape shape = outline_[options_.stage.first].input;
    shape.N = images;
    const Value input{nullptr, shape, Keep::kValues, plan_.type()};
    const Value logits = layers_.plan_forward(input, plan_, training);
    plan_.op({logits});
    if (ends() && logits.type != Type::kFloat32) {
        logits_ = plan_.make(logits.shape, Type::kFloat32);
        plan_.op({logits_});
    }
    if (training) {
        dlogits_ = plan_.make(logits.shape);
        layers_.plan_backward(dlogits_, plan_, options_.stage.first > 0);
    }
    plan_.place(backend_);
    return plan_.block_bytes();
}

Tensor Model::forward(Tensor x, const Pass& pass) {
    ENSURE(x.N <= planned_, "a batch of ", x.N, ", planned for ", planned_);
    Shape shape = outline_[options_.stage.first].input;
    shape.N = x.N;
    ENSURE(x.shape() == shape, "images of ", x.shape().text());
    ENSURE(x.type == plan_.type(), "images of ", name_of(x.type));
    ENSURE(training_ || !pass.training, "planned for evaluation only");
    if (pass.refresh) params_->refresh(backend_);
    return logits_.copy_of(layers_.forward(x, pass), backend_);
}

Tensor Model::dlogits(int N) {
    ENSURE(training_ && N <= planned_, N, " images, planned for ", planned_);
    return dlogits_.first(N);
}

Tensor Model::backward(Tensor dy, const Pass& pass, GradListener& listener) {
    ENSURE(training_ && pass.training, "a backward pass in evaluation");
    dy = layers_.backward(dy, pass, listener);
    return options_.stage.first > 0 ? dy : Tensor();
}

double Model::forward_flops() const {
    double flops = 0;
    for (const LayerLine& line : lines_) flops += line.flops;
    return flops;
}

std::string Model::layer_of(const Param& param) const {
    const std::string name = layer_name(param);
    const auto line = std::ranges::find(lines_, name, &LayerLine::name);
    return line == lines_.end() ? name : cat(name, " (", line->what, ")");
}

std::string Model::table() const {
    std::string text;
    const auto add = [&](const std::string& name, const std::string& what,
                         const std::string& output, const std::string& params,
                         const std::string& gflop) {
        text += fmt::format("{:<24.24} {:<38.38} {:>13} {:>12} {:>8}", name, what, output, params,
                            gflop);
        text.resize(text.find_last_not_of(' ') + 1);
        text += '\n';
    };
    const auto commas = [](size_t n) { return n ? fmt::format("{}", fmt::group_digits(n)) : ""; };
    const auto gflop = [](double n) { return n > 0 ? fmt::format("{:.3f}", n / 1e9) : ""; };
    add("layer", "", "output", "parameters", "GFLOP");
    add("input", "", image_text({1, input_.H, input_.W, input_.C}), "", "");
    for (const LayerLine& line : lines_)
        add(line.name, cat(line.what, line.frozen ? ", frozen" : ""), image_text(line.output),
            commas(line.params), gflop(line.flops));
    const size_t all = params_->model_elems, trained = params_->trained_elems;
    add("total", all == trained ? "" : commas(trained) + " trained", "", commas(all),
        gflop(forward_flops()));
    return text;
}

}  // namespace convoy
