// ONNX files, src/checkpoint/onnx.h: their structure, and what ONNX Runtime makes of them.
#include "src/checkpoint/onnx.h"

#include <fstream>
#include <numeric>
#include <set>

#include "src/checkpoint/weights.h"
#include "src/model/layers/layers.h"
#include "src/model/model_text.h"
#include "tests/process.h"
#include "tests/protobuf_reader.h"

using namespace convoy;

// Every kind of layer; pools whose parts overlap; a norm behind a flatten.
static const char* kOdd = R"(input 29x20x1
conv2d c1 out 8 size 3x5 stride 2x1 pad 1x4 dilation 1x2
relu
maxpool size 3x2 stride 2x1 pad 1x0
residual r
conv2d c1 out 8 size 3 pad 1 bias no
relu
conv2d c2 out 12 size 1
shortcut
conv2d c3 out 12 size 1 bias no
batchnorm b
end
residual s
conv2d c out 12 size 3 pad 1
batchnorm b
end
residual t relu no
conv2d c1 out 24 size 1
relu6
conv2d c2 out 24 size 3 pad same dilation 2x3 groups 24
leaky_relu 0.2
conv2d c3 out 12 size 3x2 pad same dilation 3 groups 3
batchnorm b eps 0.01
end
layernorm n eps 0.02
groupnorm g3 groups 3 eps 0.03
pointwise w out 12
gelu
scale s start 0.5
maxpool size 2 stride 2 ceil yes
branches
conv2d p out 6 size 4x3 pad same
elu 0.7
|
avgpool size 3 stride 1 pad 1
|
end
excite
avgpool 1
conv2d e1 out 3 size 1
silu
conv2d e2 out 30 size 1
hardsigmoid
end
hardswish
branches split yes shuffle yes
|
conv2d h1 out 10 size 1
|
conv2d h2 out 10 size 3 pad 1
relu
end
excite
avgpool 1
linear e3 out 30
sigmoid
end
avgpool 3x4
branches
flatten
|
conv2d q out 3 size 2
flatten
end
batchnorm b
dropout 0.5
linear f1 out 10 bias no
relu
layernorm fn
groupnorm fg groups 2
groupnorm fi groups 10
scale fs start 2
pointwise fp out 9
branches shuffle yes
linear s1 out 3
|
linear s2 out 3
end
linear f2 out classes
)";
static const char* kRow = "input 8\nconv2d c out classes size 3\navgpool 1\n";
// Images of one pixel, from pools and from linear layers, meet in every way.
static const char* kPixel = R"(input 8
branches
avgpool 1
|
avgpool 1
flatten
linear l out 5
end
flatten
conv2d c out 6 size 1
residual r relu no
pointwise p out 6
shortcut
linear s out 6
end
excite
linear e out 6
sigmoid
end
linear fc out classes
)";

static std::vector<std::string> names(int classes) {
    std::vector<std::string> all;
    for (int i = 0; i < classes; ++i) all.push_back(cat("class ", i));
    return all;
}

// A model with start values, but with statistics as after training; its card and weights.
struct Exported {
    explicit Exported(const std::string& text, const std::string& name, int classes)
        : backend(make_backend("cpu")),
          model(text, {.name = name, .classes = classes, .seed = 5}, *backend),
          card{name, text, model.input(), names(classes), model.statistics()} {
        for (Param* param : model.params().all()) {
            std::vector<float> values = random_floats(param->shape.elems(), 3);
            if (param->dims > 1) continue;
            for (float& v : values)
                v = param->name.ends_with("_var") || param->name.ends_with("weight") ? 1 + 0.5f * v
                                                                                     : 0.1f * v;
            backend->upload(param->value.floats(), values.data(), values.size() * sizeof(float));
        }
        weights = export_weights(model, *backend);
    }
    std::unique_ptr<Backend> backend;
    Model model;
    ModelCard card;
    SafeTensors weights;
};

TEST_CASE("onnx: every kind of layer has an ONNX form") {
    for (const LayerKind* kind : kLayerKinds) {
        CAPTURE(kind->name);
        CHECK(has_onnx_form(kind->name));
    }
}

TEST_CASE("onnx: nodes read what is there before them, and the weights are those of the model") {
    for (const bool preprocessing : {false, true}) {
        Exported odd(kOdd, "odd", 7);
        TempDir dir;
        write_onnx(dir / "m.onnx", odd.card, odd.weights, preprocessing);
        const std::string file = read_file(dir / "m.onnx");
        CHECK(proto_one(file, 1).value == 8);
        CHECK(proto_one(proto_text(file, 8), 2).value == 17);
        std::map<std::string, std::string> metadata;
        for (const ProtoField& entry : proto_all(file, 14))
            metadata[proto_text(entry.bytes, 1)] = proto_text(entry.bytes, 2);
        CHECK(card_from_metadata(metadata, "m.onnx").classes == odd.card.classes);
        CHECK(metadata.at("resize") == R"({"crop":[29,20],"to":[33,22]})");

        const std::string graph = proto_text(file, 7);
        std::set<std::string> known;
        size_t params = 0;
        for (const ProtoField& field : proto_all(graph, 5)) {
            const std::string name = proto_text(field.bytes, 8);
            CAPTURE(name);
            CHECK(known.insert(name).second);
            CHECK(proto_one(field.bytes, 2).value == 1);
            std::vector<int64_t> shape;
            for (const ProtoField& dim : proto_all(field.bytes, 1))
                shape.push_back(int64_t(dim.value));
            const std::string data = proto_text(field.bytes, 9);
            CHECK(data.size() ==
                  4 * size_t(std::accumulate(shape.begin(), shape.end(), 1, std::multiplies())));
            const auto found = odd.weights.tensors.find(name.substr(0, name.find('/')));
            if (found == odd.weights.tensors.end()) continue;  // a constant
            ++params;
            if (name == "w.weight")
                shape.resize(2);  // of the pointwise layer, a 1x1 convolution here
            if (name.ends_with("/weight")) shape = {shape[0], 1, 1};  // of a scale
            if (name.starts_with("g3.") || name.starts_with("fg.") || name.starts_with("fi."))
                shape.resize(1);  // of a groupnorm: C x 1 x 1
            CHECK(found->second.shape == shape);
            CHECK(std::memcmp(found->second.values.data(), data.data(), data.size()) == 0);
        }
        CHECK(params == odd.model.params().all().size());
        const std::string input = proto_text(graph, 11), type = proto_text(input, 2);
        const std::string tensor = proto_text(type, 1), shape = proto_text(tensor, 2);
        CHECK(proto_text(input, 1) == (preprocessing ? "pixels" : "input"));
        CHECK(proto_one(tensor, 1).value == (preprocessing ? 2 : 1));
        CHECK(proto_all(shape, 1).size() == 4);
        CHECK(proto_text(proto_all(shape, 1)[0].bytes, 2) == "batch");
        CHECK(proto_one(proto_all(shape, 1)[1].bytes, 1).value == (preprocessing ? 29 : 1));
        known.insert(proto_text(input, 1));
        for (const ProtoField& node : proto_all(graph, 1)) {
            for (const ProtoField& read : proto_all(node.bytes, 1)) {
                CAPTURE(std::string(read.bytes));
                CHECK(known.contains(std::string(read.bytes)));
            }
            for (const ProtoField& made : proto_all(node.bytes, 2))
                CHECK(known.insert(std::string(made.bytes)).second);
        }
        CHECK(proto_all(graph, 12).size() == 1 + preprocessing);
        for (const ProtoField& output : proto_all(graph, 12))
            CHECK(known.contains(proto_text(output.bytes, 1)));
    }
    Exported square(kPixel, "square", 7);
    for (const char* resize :
         {R"({"crop":[8,8],"shorter_side":9})", R"({"crop":[8,8],"to":[8,8]})"}) {
        TempDir dir;
        write_onnx(dir / "m.onnx", square.card, square.weights, false);
        CHECK(contains(read_file(dir / "m.onnx"), resize));
        square.card.whole = true;
    }
}

TEST_CASE("onnx: ONNX Runtime's logits are ours, of every built-in model") {
    std::vector<std::pair<std::string, std::string>> models = {
        {"odd", kOdd}, {"row", kRow}, {"pixel", kPixel}};
    for (const std::string& name : built_in_models()) models.emplace_back(name, model_text(name));
    for (const auto& [name, text] : models) {
        CAPTURE(name);
        for (const bool preprocessing : {false, true}) {
            if (preprocessing && parse_model(text, name).input.H > 100) continue;  // no other nodes
            Exported exported(text, name, 7);
            const InputSize size = exported.card.size;
            constexpr int N = 2;
            const size_t pixels = size_t(size.H) * size_t(size.W), channels = size_t(size.C);
            std::vector<uint8_t> bytes(N * size.elems());
            std::vector<float> x = random_floats(bytes.size(), 9), transposed(x.size()),
                               logits(N * 7);
            const Preprocess how = exported.card.preprocess();
            for (size_t i = 0; i < x.size(); ++i) {
                const size_t c = i % channels, image = i / size.elems();
                bytes[i] = uint8_t(128 + 127 * x[i]);
                if (preprocessing) x[i] = float(bytes[i]) * how.scale(int(c)) + how.bias(int(c));
                transposed[(image * channels + c) * pixels + i / channels % pixels] = x[i];
            }
            exported.model.plan(N, /*training=*/false);
            const Tensor y = exported.model.forward({x.data(), {N, size.H, size.W, size.C}},
                                                    {false, {}, {}, {}});
            exported.backend->download(logits.data(), y.data, logits.size() * sizeof(float));

            TempDir dir;
            const auto save = [&](const char* file, const void* data, size_t n) {
                std::ofstream(dir / file, std::ios::binary)
                    .write(static_cast<const char*>(data), std::streamsize(n));
            };
            write_onnx(dir / "model.onnx", exported.card, exported.weights, preprocessing);
            save("logits.bin", logits.data(), logits.size() * sizeof(float));
            if (preprocessing)
                save("input.bin", bytes.data(), bytes.size());
            else
                save("input.bin", transposed.data(), transposed.size() * sizeof(float));
            const std::string shape = preprocessing ? cat(size.H, "x", size.W, "x", size.C)
                                                    : cat(size.C, "x", size.H, "x", size.W);
            if (!python_agrees("onnx_check.py", cat(dir.path().string(), " ", N, " ", shape,
                                                    preprocessing ? " uint8" : " float32")))
                return;
        }
    }
}
