// onnx.cpp — see onnx.h. The numbers of fields are from onnx.proto.
//
// The graph follows the model's text, not its layers, because a layer may fuse several lines. All
// values are images, N×C×H×W; what a linear layer computes is N×C×1×1.
#include "src/checkpoint/onnx.h"

#include <climits>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/base/bytes.h"
#include "src/base/protobuf.h"
#include "src/model/model_text.h"

namespace convoy {
using nlohmann::json;
namespace {

constexpr int kIrVersion = 8, kOpset = 17;
enum DataType { kFloat = 1, kUint8 = 2 };  // of TensorProto

ProtoMessage attribute(const char* name, int value) {
    return ProtoMessage().bytes(1, name).number(3, value).number(20, 2);
}
ProtoMessage attribute(const char* name, std::initializer_list<int> values) {
    ProtoMessage message = ProtoMessage().bytes(1, name);
    for (const int value : values) message.number(8, value);
    return message.number(20, 7);
}
ProtoMessage attribute(const char* name, float value) {
    return ProtoMessage().bytes(1, name).real(2, value).number(20, 1);
}

// The nodes in order, and the tensors that they read. `value` is the output of the last node.
struct Graph {
    const SafeTensors& weights;
    int H, W;                 // of the images that flow
    std::string value;        // name
    std::string prefix = {};  // of names: "layer1.0." in that residual block
    ProtoMessage nodes = {};
    std::map<std::string, const StoredTensor*> used = {};
    std::map<std::string, StoredTensor> constants = {};
    int count = 0;

    // The name of a param. The file will contain it, with `more` dimensions of 1 behind its own.
    std::string weight(const LayerText& layer, const char* part, size_t more = 0) {
        const std::string name = cat(prefix, layer.name, ".", part);
        used[name] = &weights.tensors.at(name);
        if (more == 0) return name;
        StoredTensor tensor = *used[name];
        tensor.shape.insert(tensor.shape.end(), more, 1);
        return constant(name, std::move(tensor));
    }
    std::string constant(const std::string& name, StoredTensor tensor) {
        used[name] = &(constants[name] = std::move(tensor));
        return name;
    }
    std::vector<std::string> with_weights(const LayerText& layer, size_t more = 0) {
        std::vector<std::string> inputs = {value, weight(layer, "weight", more)};
        if (layer.bias) inputs.push_back(weight(layer, "bias"));
        return inputs;
    }
    std::string fresh(const char* op) { return cat(op, "_", ++count); }
    // op(inputs), into a new value, or into `outputs`.
    void add(const char* op, const std::vector<std::string>& inputs,
             const std::vector<ProtoMessage>& attributes = {},
             const std::vector<std::string>& outputs = {}) {
        ProtoMessage node;
        for (const std::string& input : inputs) node.bytes(1, input);
        value = outputs.empty() ? fresh(op) : outputs.back();
        for (const std::string& output : outputs.empty() ? std::vector{value} : outputs)
            node.bytes(2, output);
        node.bytes(3, value).bytes(4, op);
        for (const ProtoMessage& one : attributes) node.bytes(5, one);
        nodes.bytes(1, node);
    }
    // A rectifier with a slope.
    void add_bent(const char* op, float slope) { add(op, {value}, {attribute("alpha", slope)}); }
    void reshape(std::initializer_list<int> shape) {  // 0: as before; -1: the rest
        const std::string x = value;
        add("Constant", {}, {attribute("value_ints", shape)});
        add("Reshape", {x, value});
    }
    void transpose(std::initializer_list<int> perm) {
        add("Transpose", {value}, {attribute("perm", perm)});
    }
    void add_layers(const std::vector<LayerText>& layers);
};

void slide(const char* op, const std::vector<std::string>& inputs, const LayerText& layer,
           Graph& graph, const std::vector<ProtoMessage>& more = {}) {
    const Window w = window_of(layer, {1, graph.H, graph.W, 1});
    std::vector<ProtoMessage> attributes = {
        attribute("kernel_shape", {w.size_h, w.size_w}),
        attribute("strides", {w.stride_h, w.stride_w}),
        attribute("pads", {w.pad_h, w.pad_w, w.pad_h + w.extra_h, w.pad_w + w.extra_w})};
    attributes.insert(attributes.end(), more.begin(), more.end());
    graph.add(op, inputs, attributes);
    graph.H = w.out_h(graph.H), graph.W = w.out_w(graph.W);
}

void batch_norm(const LayerText& layer, Graph& graph) {
    graph.add("BatchNormalization",
              {graph.value, graph.weight(layer, "weight"), graph.weight(layer, "bias"),
               graph.weight(layer, "running_mean"), graph.weight(layer, "running_var")},
              {attribute("epsilon", layer.eps)});
}

// The mean of each of `parts` parts of `size` pixels, as a matrix: part p is [p·size/parts,
// ⌈(p+1)·size/parts⌉), as in Backend::avg_pool. Transposed: size × parts.
StoredTensor averages(int size, int parts, bool transposed) {
    StoredTensor matrix{"F32", {parts, size}, std::vector<float>(size_t(size) * size_t(parts))};
    if (transposed) std::swap(matrix.shape[0], matrix.shape[1]);
    for (int p = 0; p < parts; ++p) {
        const int begin = p * size / parts, end = ((p + 1) * size + parts - 1) / parts;
        for (int i = begin; i < end; ++i)
            matrix.values[size_t(transposed ? i * parts + p : p * size + i)] =
                1 / float(end - begin);
    }
    return matrix;
}

// ONNX has no adaptive pool. The parts of such a pool may overlap, so a window cannot express them.
// Instead the pool is a product with a matrix on each side.
void avg_pool(const LayerText& layer, Graph& graph) {
    const int P = layer.rows, Q = layer.columns;
    if (P == 0)
        return slide("AveragePool", {graph.value}, layer, graph,
                     {attribute("count_include_pad", 1)});
    if (P == graph.H && Q == graph.W) return;
    if (P == 1 && Q == 1) {
        graph.add("GlobalAveragePool", {graph.value});
    } else {
        const std::string name = graph.fresh("avgpool");
        const std::string rows = graph.constant(name + ".rows", averages(graph.H, P, false));
        const std::string columns = graph.constant(name + ".columns", averages(graph.W, Q, true));
        graph.add("MatMul", {rows, graph.value});
        graph.add("MatMul", {graph.value, columns});
    }
    graph.H = P, graph.W = Q;
}

void residual(const LayerText& layer, Graph& graph) {
    const std::string x = graph.value, outside = graph.prefix;
    const int H = graph.H, W = graph.W;
    graph.prefix += layer.name + ".";
    graph.add_layers(layer.branches[0]);
    const std::string main = std::exchange(graph.value, x);
    graph.H = H, graph.W = W;
    if (layer.branches.size() > 1) graph.add_layers(layer.branches[1]);
    graph.prefix = outside;
    graph.add("Add", {main, graph.value});
    if (layer.relu) graph.add("Relu", {graph.value});
}

void branches(const LayerText& layer, Graph& graph) {
    const int B = int(layer.branches.size());
    std::vector<std::string> parts(layer.branches.size(), graph.value);
    for (std::string& part : parts)
        if (layer.split) part = graph.fresh("Split");
    if (layer.split) graph.add("Split", {graph.value}, {attribute("axis", 1)}, parts);
    const auto [H, W] = std::pair(graph.H, graph.W);
    for (int i = 0; i < B; ++i) {
        graph.value = parts[i], graph.H = H, graph.W = W;
        graph.add_layers(layer.branches[i]);
        parts[i] = graph.value;
    }
    graph.add("Concat", parts, {attribute("axis", 1)});
    if (!layer.shuffle) return;
    graph.reshape({0, B, -1, graph.H * graph.W});
    graph.transpose({0, 2, 1, 3});
    graph.reshape({0, -1, graph.H, graph.W});
}

void excite(const LayerText& layer, Graph& graph) {
    const std::string x = graph.value;
    const auto [H, W] = std::pair(graph.H, graph.W);
    graph.add_layers(layer.branches[0]);
    graph.add("Mul", {x, graph.value});
    graph.H = H, graph.W = W;
}

void layer_norm(const LayerText& layer, Graph& graph) {
    graph.transpose({0, 2, 3, 1});
    graph.add("LayerNormalization",
              {graph.value, graph.weight(layer, "weight"), graph.weight(layer, "bias")},
              {attribute("axis", -1), attribute("epsilon", layer.eps)});
    graph.transpose({0, 3, 1, 2});
}

// The groups are the channels of an InstanceNormalization: GroupNormalization came in opset 18.
void group_norm(const LayerText& layer, Graph& graph) {
    const int G = layer.groups;
    const auto all = [&](float value) {
        return graph.constant(cat("groups/", G, "/", value), {"F32", {G}, std::vector(G, value)});
    };
    graph.reshape({0, G, -1});
    graph.add("InstanceNormalization", {graph.value, all(1), all(0)},
              {attribute("epsilon", layer.eps)});
    graph.reshape({0, -1, graph.H, graph.W});
    graph.add("Mul", {graph.value, graph.weight(layer, "weight", 2)});
    graph.add("Add", {graph.value, graph.weight(layer, "bias", 2)});
}

// x·(erf(x/√2) + 1)/2
void gelu(const LayerText&, Graph& graph) {
    const std::string x = graph.value;
    const std::string root = graph.constant("gelu.root", {"F32", {}, {std::sqrt(0.5f)}});
    const std::string half = graph.constant("gelu.half", {"F32", {}, {0.5f}});
    graph.add("Mul", {x, root});
    graph.add("Erf", {graph.value});
    graph.add("Mul", {graph.value, half});
    graph.add("Add", {graph.value, half});
    graph.add("Mul", {graph.value, x});
}

void flatten(const LayerText&, Graph& graph) {
    if (graph.H * graph.W > 1) graph.reshape({0, -1, 1, 1});
    graph.H = graph.W = 1;
}

void linear(const LayerText& layer, Graph& graph) {
    graph.add("Flatten", {graph.value}, {attribute("axis", 1)});
    graph.add("Gemm", graph.with_weights(layer), {attribute("transB", 1)});
    graph.reshape({0, -1, 1, 1});
    graph.H = graph.W = 1;
}

// Where images have one pixel, it is a linear layer. A Conv's weights need four dimensions.
void pointwise(const LayerText& layer, Graph& graph) {
    if (graph.H * graph.W == 1) return linear(layer, graph);
    graph.add("Conv", graph.with_weights(layer, 2));
}

// "NAME/weight": a bare NAME could be the name of a value. No layer has a slash in its name.
void scale(const LayerText& layer, Graph& graph) {
    const std::string name = graph.prefix + layer.name;
    graph.add("Mul",
              {graph.value, graph.constant(name + "/weight", graph.weights.tensors.at(name))});
}

struct Form {
    const char* kind;  // of LayerText
    void (*add)(const LayerText& layer, Graph& graph);
};
constexpr Form kForms[] = {
    {"avgpool", avg_pool},
    {"batchnorm", batch_norm},
    {"branches", branches},
    {"conv2d",
     [](auto& layer, auto& graph) {
         slide("Conv", graph.with_weights(layer), layer, graph,
               {attribute("group", layer.groups),
                attribute("dilations", {layer.window.dilation_h, layer.window.dilation_w})});
     }},
    {"dropout", [](auto&, auto&) {}},
    {"elu", [](auto& layer, auto& graph) { graph.add_bent("Elu", layer.number); }},
    {"excite", excite},
    {"flatten", flatten},
    {"gelu", gelu},
    {"groupnorm", group_norm},
    {"hardsigmoid", [](auto&, auto& graph) { graph.add_bent("HardSigmoid", 1 / 6.0f); }},
    {"hardswish", [](auto&, auto& graph) { graph.add("HardSwish", {graph.value}); }},
    {"layernorm", layer_norm},
    {"leaky_relu", [](auto& layer, auto& graph) { graph.add_bent("LeakyRelu", layer.number); }},
    {"linear", linear},
    {"maxpool", [](auto& layer, auto& graph) { slide("MaxPool", {graph.value}, layer, graph); }},
    {"pointwise", pointwise},
    {"relu", [](auto&, auto& graph) { graph.add("Relu", {graph.value}); }},
    {"relu6",
     [](auto&, auto& graph) {
         graph.add("Clip", {graph.value, graph.constant("relu6.min", {"F32", {}, {0}}),
                            graph.constant("relu6.max", {"F32", {}, {6}})});
     }},
    {"residual", residual},
    {"scale", scale},
    {"sigmoid", [](auto&, auto& graph) { graph.add("Sigmoid", {graph.value}); }},
    {"silu",
     [](auto&, auto& graph) {
         const std::string x = graph.value;
         graph.add("Sigmoid", {x});
         graph.add("Mul", {x, graph.value});
     }},
};

const Form* find_form(const std::string& kind) {
    const Form* form = std::ranges::find(kForms, kind, &Form::kind);
    return form == std::end(kForms) ? nullptr : form;
}

void Graph::add_layers(const std::vector<LayerText>& layers) {
    for (const LayerText& layer : layers) {
        const Form* form = find_form(layer.kind);
        if (!form)
            fail("'", layer.kind, "' (line ", layer.line, " of the model) has no ONNX form yet; ",
                 "--format safetensors takes every model");
        form->add(layer, *this);
    }
}

// A ValueInfoProto. dims[0] is the batch.
ProtoMessage value_info(const char* name, DataType type, std::initializer_list<int> dims) {
    ProtoMessage shape = ProtoMessage().bytes(1, ProtoMessage().bytes(2, "batch"));
    for (const int dim : dims) shape.bytes(1, ProtoMessage().number(1, dim));
    const ProtoMessage tensor = ProtoMessage().number(1, type).bytes(2, shape);
    return ProtoMessage().bytes(1, name).bytes(2, ProtoMessage().bytes(1, tensor));
}

}  // namespace

bool has_onnx_form(const std::string& kind) { return find_form(kind); }

void write_onnx(const std::string& path, const ModelCard& card, const SafeTensors& weights,
                bool with_preprocessing) {
    const auto [H, W, C] = card.size;
    const int classes = int(card.classes.size());
    Graph graph{weights, H, W, with_preprocessing ? "pixels" : "input"};
    const Preprocess how = card.preprocess();
    if (with_preprocessing) {
        graph.add("Cast", {graph.value}, {attribute("to", kFloat)});
        graph.transpose({0, 3, 1, 2});
        const auto by_channel = [&](const char* op, const char* name, auto factor) {
            StoredTensor tensor{"F32", {1, C, 1, 1}, {}};
            for (int c = 0; c < C; ++c) tensor.values.push_back((how.*factor)(c));
            graph.add(op, {graph.value, graph.constant(name, tensor)});
        };
        by_channel("Mul", "preprocess.scale", &Preprocess::scale);
        by_channel("Add", "preprocess.bias", &Preprocess::bias);
    }
    graph.add_layers(parse_model(card.model_text, card.model_name).layers);
    graph.add("Flatten", {graph.value}, {attribute("axis", 1)}, {"logits"});
    if (with_preprocessing)
        graph.add("Softmax", {"logits"}, {attribute("axis", 1)}, {"probabilities"});

    ProtoMessage rest =
        ProtoMessage().bytes(2, card.model_name.empty() ? "model" : card.model_name);
    rest.bytes(11, with_preprocessing ? value_info("pixels", kUint8, {H, W, C})
                                      : value_info("input", kFloat, {C, H, W}));
    rest.bytes(12, value_info("logits", kFloat, {classes}));
    if (with_preprocessing) rest.bytes(12, value_info("probabilities", kFloat, {classes}));

    // The values are not copied, so that a large model is in memory once. Each initializer is a
    // pair: the bytes in front of its values, and the values.
    size_t graph_size = graph.nodes.size() + rest.size();
    std::vector<std::pair<ProtoMessage, const std::vector<float>*>> initializers;
    for (const auto& [name, tensor] : graph.used) {
        const size_t bytes = tensor->values.size() * sizeof(float);
        ProtoMessage head;
        for (const int64_t dim : tensor->shape) head.number(1, dim);
        head.number(2, kFloat).bytes(8, name).head(9, bytes);
        ProtoMessage field = ProtoMessage().head(5, head.size() + bytes);
        graph_size += field.size() + head.size() + bytes;
        initializers.emplace_back(std::move(field.append(head)), &tensor->values);
    }

    ProtoMessage model = ProtoMessage().number(1, kIrVersion).bytes(2, "convoy");
    model.bytes(8, ProtoMessage().bytes(1, "").number(2, kOpset));
    auto metadata = card_to_metadata(card);
    const Resizing resizing = input_resizing(H, W, how, 0, 0);  // of an image of the input's shape
    json resize = {{"crop", {H, W}}};
    if (H == W && how.augment == Augment::none)
        resize["shorter_side"] = resizing.H;
    else
        resize["to"] = {resizing.H, resizing.W};
    metadata["resize"] = resize.dump();
    for (const auto& [key, value] : metadata)
        model.bytes(14, ProtoMessage().bytes(1, key).bytes(2, value));
    model.head(7, graph_size);
    if (model.size() + graph_size > INT_MAX)
        fail(path, " would have ", model.size() + graph_size,
             " bytes, and an ONNX file holds 2 GB at most; --format safetensors has no such limit");

    std::ofstream file(path, std::ios::binary);
    const auto write = [&](std::string_view bytes) {
        file.write(bytes.data(), std::streamsize(bytes.size()));
    };
    write(model), write(graph.nodes), write(rest);
    for (const auto& [head, values] : initializers) {
        write(head);
        write(as_text(*values));
    }
    close_synced(file, path);
}

}  // namespace convoy
