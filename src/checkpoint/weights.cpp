// weights.cpp — between our rows and torchvision's tensors.
#include "src/checkpoint/weights.h"

#include <algorithm>
#include <set>

#include "src/base/text.h"

namespace convoy {
namespace {

// How a row lies: `rows` matrices of pixels × channels in ours, channels × pixels in theirs.
struct Layout {
    size_t rows, pixels, channels;
};
Layout layout_of(const Param& row) {
    const Shape s = row.shape;
    if (row.dims == 4) return {size_t(s.N), size_t(s.H) * s.W, size_t(s.C)};
    if (row.flat.N) return {size_t(s.N), size_t(row.flat.H) * row.flat.W, size_t(row.flat.C)};
    return {1, 1, s.elems()};
}

std::vector<int64_t> their_shape(const Param& row) {
    const Shape s = row.shape;
    if (row.dims == 4) return {s.N, s.C, s.H, s.W};
    if (row.dims == 2) return {s.N, s.C};
    return {s.C};
}

// to[row][j][i] = from[row][i][j], i < height, j < width.
std::vector<float> transposed(const std::vector<float>& from, size_t rows, size_t height,
                              size_t width) {
    if (height == 1 || width == 1) return from;
    std::vector<float> to(from.size());
    for (size_t row = 0; row < rows; ++row) {
        const float* in = from.data() + row * height * width;
        float* out = to.data() + row * height * width;
        for (size_t j = 0; j < width; ++j)
            for (size_t i = 0; i < height; ++i) *out++ = in[i * width + j];
    }
    return to;
}

std::vector<float> downloaded(const Param& row, Backend& backend) {
    std::vector<float> values(row.shape.elems());
    backend.download(values.data(), row.value.floats(), values.size() * sizeof(float));
    return values;
}

std::string shape_text(const std::vector<int64_t>& shape) {
    return shape.empty() ? "one number" : join_text(shape, "x");
}

std::string some(std::vector<std::string> names) {
    if (names.size() > 8) {
        const size_t more = names.size() - 8;
        names.resize(8);
        names.push_back(cat("and ", more, " more"));
    }
    return join_text(names);
}

constexpr const char* kTracked = ".num_batches_tracked";  // batch norm's counter in PyTorch

}  // namespace

SafeTensors export_weights(Model& model, Backend& backend) {
    SafeTensors content;
    for (const Param* row : model.params().all()) {
        const Layout l = layout_of(*row);
        content.tensors[row->name] = {
            "F32", their_shape(*row),
            transposed(downloaded(*row, backend), l.rows, l.pixels, l.channels)};
        if (row->name.ends_with(".running_var"))
            content.tensors[layer_name(row->name) + kTracked] = {"I64", {}, {0}};
    }
    return content;
}

SafeTensors native_weights(Model& model, Backend& backend) {
    SafeTensors content;
    for (const Param* row : model.params().all()) {
        const Shape s = row->shape;
        std::vector<int64_t> shape = {s.C};
        if (row->dims == 2) shape = {s.N, s.C};
        if (row->dims == 4) shape = {s.N, s.H, s.W, s.C};
        content.tensors[row->name] = {"F32", shape, downloaded(*row, backend)};
    }
    return content;
}

ImportReport import_weights(const SafeTensors& from, Model& model, Backend& backend, bool partial) {
    // A layer of which one row does not fit starts fresh as a whole.
    std::set<std::string> misfits, used;
    for (const Param* row : model.params().all()) {
        const auto found = from.tensors.find(row->name);
        const bool missing = found == from.tensors.end();
        if (!missing && found->second.shape == their_shape(*row)) continue;
        if (!partial && missing)
            fail("the weights have no '", row->name, "' (", shape_text(their_shape(*row)),
                 "), which the model has");
        if (!partial)
            fail("'", row->name, "' is ", shape_text(found->second.shape), " in the weights, ",
                 shape_text(their_shape(*row)), " in the model");
        misfits.insert(layer_name(row->name));
    }

    ImportReport report;
    for (const Param* row : model.params().all()) {
        if (misfits.count(layer_name(row->name))) {
            report.fresh.push_back(row->name);
            continue;
        }
        const Layout l = layout_of(*row);
        const std::vector<float> values =
            transposed(from.tensors.at(row->name).values, l.rows, l.channels, l.pixels);
        backend.upload(row->value.floats(), values.data(), values.size() * sizeof(float));
        report.loaded.push_back(row->name);
        used.insert(row->name);
    }
    for (auto& [name, tensor] : from.tensors)
        if (!used.count(name) && !name.ends_with(kTracked)) report.unused.push_back(name);
    if (report.loaded.empty())
        fail("no tensor of the weights fits the model: they have ", some(report.unused),
             "; the model has ", some(report.fresh));
    return report;
}

std::string ImportReport::text() const {
    std::string line =
        cat("loaded ", loaded.size(), " of ", loaded.size() + fresh.size(), " tensors");
    if (!fresh.empty()) line += cat("; starting fresh: ", some(fresh));
    if (!unused.empty()) line += cat("; not used: ", some(unused));
    return line;
}

}  // namespace convoy
