// weights.cpp — between our params and torchvision's tensors.
#include "src/checkpoint/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "src/base/text.h"

namespace convoy {

static std::vector<int64_t> shape_in_files(const Param& param) {
    const Shape s = param.shape;
    if (param.dims == 1) return {int64_t(s.elems())};
    if (param.dims == 2) return {s.N, s.C};
    if (param.dims == 3) return {s.N, 1, 1};
    return {s.N, s.C, s.H, s.W};
}

// Converts N matrices from channels × pixels to our pixels × channels, or back.
static std::vector<float> transposed(std::vector<float> from, const Param& param, bool to_ours) {
    const std::vector<Shape> parts = param.dims == 4 ? std::vector{param.shape} : param.flat;
    if (parts.empty()) return from;
    std::vector<float> to;
    to.reserve(from.size());
    for (const float* in = from.data(); to.size() < from.size();)
        for (const Shape& s : parts) {
            const size_t pixels = size_t(s.H) * size_t(s.W), channels = size_t(s.C);
            const size_t height = to_ours ? channels : pixels, width = to_ours ? pixels : channels;
            for (size_t j = 0; j < width; ++j)
                for (size_t i = 0; i < height; ++i) to.push_back(in[i * width + j]);
            in += height * width;
        }
    return to;
}

static std::string shape_text(const std::vector<int64_t>& shape) {
    return shape.empty() ? "one number" : join_text(shape, "x");
}

constexpr const char* kTracked = ".num_batches_tracked";  // batch norm's counter in PyTorch

SafeTensors export_weights(Model& model, Backend& backend, int64_t steps) {
    SafeTensors content;
    for (const Param* param : model.params().all()) {
        std::vector<float> values(param->shape.elems());
        backend.download(values.data(), param->value.floats(), values.size() * sizeof(float));
        values = transposed(std::move(values), *param, /*to_ours=*/false);
        content.tensors[param->name] = {"F32", shape_in_files(*param), std::move(values)};
        if (param->name.ends_with(".running_var"))
            content.tensors[layer_name(*param) + kTracked] = {
                "I64", {}, {param->frozen ? 0 : float(steps)}};
    }
    return content;
}

ImportReport import_weights(const SafeTensors& from, Model& model, Backend& backend, bool partial) {
    // If one param of a layer does not fit, the whole layer keeps its random start values.
    std::set<std::string> misfits, used;
    for (const Param* param : model.params().all()) {
        const std::vector<int64_t> shape = shape_in_files(*param);
        const auto found = from.tensors.find(param->name);
        const bool missing = found == from.tensors.end();
        if (!missing && found->second.shape == shape) continue;
        if (const auto other = from.left_out.find(param->name); other != from.left_out.end())
            fail("'", param->name, "' is of type '", printable(other->second),
                 "' in the weights, which is not read: save it as float32");
        if (!partial && missing)
            fail("the weights have no '", param->name, "' (", shape_text(shape),
                 "), which the model has");
        if (!partial)
            fail("'", param->name, "' is ", shape_text(found->second.shape), " in the weights, ",
                 shape_text(shape), " in the model; check --model, --classes and --size");
        misfits.insert(layer_name(*param));
    }

    ImportReport report;
    for (const Param* param : model.params().all()) {
        if (misfits.count(layer_name(*param))) {
            report.fresh.push_back(param->name);
            continue;
        }
        const std::vector<float> values =
            transposed(from.tensors.at(param->name).values, *param, /*to_ours=*/true);
        backend.upload(param->value.floats(), values.data(), values.size() * sizeof(float));
        report.loaded.push_back(param->name);
        used.insert(param->name);
    }
    for (auto& [name, tensor] : from.tensors)
        if (!used.count(name) && !name.ends_with(kTracked)) report.unused.push_back(name);
    if (report.loaded.empty())
        fail("no tensor of the weights fits the model: the weights have ", some_of(report.unused),
             "; the model has ", some_of(report.fresh), "; check --model");
    return report;
}

std::string recognised_model(const SafeTensors& tensors, const std::string& path,
                             Backend& backend) {
    std::string best;
    double most = 0;
    for (const std::string& name : built_in_models()) {
        const auto params = std::make_shared<Params>();  // not allocated: only names and shapes
        const Model model(model_text(name), {.name = name}, backend, params);
        size_t fits = 0;
        std::set<std::string> all;
        for (const Param* param : params->all()) {
            const auto found = tensors.tensors.find(param->name);
            all.insert(param->name);
            fits += found != tensors.tensors.end() && found->second.shape == shape_in_files(*param);
        }
        for (const auto& [tensor, _] : tensors.tensors)
            if (!tensor.ends_with(kTracked)) all.insert(tensor);
        if (const double part = double(fits) / double(all.size()); part > most)
            most = part, best = name;
    }
    constexpr double kEnough = 0.6;  // tiny's last layer is two of its six tensors
    if (most > kEnough) return best;
    fail(path, ": its tensors are not those of a built-in model",
         best.empty() ? "" : fmt::format("; the nearest is {} with {:.0f} %", best, 100 * most),
         "; give their model by --model NAME|FILE");
}

std::string ImportReport::text() const {
    std::string line =
        cat("loaded ", loaded.size(), " of ", loaded.size() + fresh.size(), " tensors");
    if (!fresh.empty()) line += cat("; initialised randomly: ", some_of(fresh));
    std::vector<std::string> left = unused;  // except tensors whose shape differs in the file
    std::erase_if(left, [&](const std::string& name) { return std::ranges::count(fresh, name); });
    if (!left.empty()) line += cat("; not used: ", some_of(left));
    return line;
}

}  // namespace convoy
