// The built-in networks, the table, freezing, and the plan of memory of a whole network.
#include "src/model/model.h"

#include <fstream>
#include <set>

#include "src/model/model_builder.h"
#include "tests/device.h"
#include "tests/support.h"

using namespace convoy;

namespace {
// A built-in network without its memory: params and layers alone.
struct Bare {
    explicit Bare(const char* name, int classes = 3) {
        const ModelText text = parse_model(model_text(name), name);
        const ModelOptions options{.name = name, .classes = classes};
        Builder(text, options, 224, params, lines, *backend).build();
    }
    std::unique_ptr<Backend> backend = make_backend("cpu");
    Params params;
    std::vector<LayerLine> lines;
};
}  // namespace

static InputSize input_of(const std::string& name) {
    return parse_model(model_text(name), name).input;
}

static std::string first_lines(const std::string& text, int n) {
    size_t at = 0;
    while (n-- > 0) at = text.find('\n', at) + 1;
    return text.substr(0, at);
}

TEST_CASE("the built-in networks have torchvision's number of parameters at 1000 classes") {
    // sum(p.numel() for p in torchvision.models.NAME().parameters()), torchvision 0.29
    struct {
        const char* name;
        size_t params;
        double gflop;  // 2 · multiply-adds of convolutions and linear layers at 224x224
    } cases[] = {
        {"resnet18", 11'689'512, 3.628},          {"resnet34", 21'797'672, 7.328},
        {"resnet50", 25'557'032, 8.178},          {"alexnet", 61'100'840, 1.428},
        {"vgg16", 138'357'544, 30.940},           {"mobilenet_v2", 3'504'872, 0.601},
        {"squeezenet1_1", 1'235'496, 0.699},      {"densenet121", 7'978'856, 5.668},
        {"googlenet", 6'624'904, 2.997},          {"resnet101", 44'549'160, 15.603},
        {"resnet152", 60'192'808, 23.027},        {"resnext50_32x4d", 25'028'904, 8.461},
        {"wide_resnet50_2", 68'883'240, 22.796},  {"vgg11", 132'863'336, 15.218},
        {"vgg11_bn", 132'868'840, 15.218},        {"vgg13", 133'047'848, 22.617},
        {"vgg13_bn", 133'053'736, 22.617},        {"vgg16_bn", 138'365'992, 30.941},
        {"vgg19", 143'667'240, 39.264},           {"vgg19_bn", 143'678'248, 39.264},
        {"densenet169", 14'149'480, 6.720},       {"mobilenet_v3_small", 2'542'856, 0.113},
        {"mobilenet_v3_large", 5'483'032, 0.433}, {"efficientnet_b0", 5'288'548, 0.772},
        {"regnet_y_400mf", 4'344'144, 0.804},     {"convnext_tiny", 28'589'128, 8.912},
        {"shufflenet_v2_x1_0", 2'278'604, 0.290},
    };
    for (auto& [name, params, gflop] : cases) {
        CAPTURE(name);
        Bare model(name, 1000);
        CHECK(model.params.model_elems == params);
        CHECK(model.params.trained_elems == params);
        double flops = 0;
        for (const LayerLine& line : model.lines) flops += line.flops;
        CHECK(flops / 1e9 == doctest::Approx(gflop).epsilon(0.001));
        CHECK(input_of(name).H == 224);
    }
    // The sums of the published files' tensors.
    for (auto [name, params, side] : {std::tuple{"efficientnet_lite0", 4'652'008u, 224},
                                      {"efficientnet_lite1", 5'416'680u, 240},
                                      {"efficientnet_lite2", 6'092'072u, 260}}) {
        CAPTURE(name);
        const Bare model(name, 1000);
        CHECK(model.params.trained_elems == params);
        CHECK(input_of(name).H == side);
        const ModelText text = parse_model(model_text(name), name);
        CHECK(text.statistics.mean[1] == doctest::Approx(127 / 255.));
        CHECK(text.statistics.std[2] == doctest::Approx(128 / 255.));
    }
    Bare lite("efficientnet_lite0", 1000);
    for (const auto& [name, shape] : {std::pair{"_conv_stem.weight", Shape{32, 3, 3, 3}},
                                      {"_blocks.0._depthwise_conv.weight", {32, 3, 3, 1}},
                                      {"_blocks.1._expand_conv.weight", {96, 1, 1, 16}},
                                      {"_blocks.8._bn1.running_var", {1, 1, 1, 480}},
                                      {"_blocks.15._project_conv.weight", {320, 1, 1, 1152}},
                                      {"_bn1.bias", {1, 1, 1, 1280}},
                                      {"_fc.weight", {1000, 1, 1, 1280}}}) {
        CAPTURE(name);
        REQUIRE(lite.params.find(name));
        CHECK(lite.params.find(name)->shape == shape);
    }
    // He et al. count 0.27 million with shortcuts of option A; option B adds two of 1x1.
    CHECK(Bare("resnet20", 10).params.trained_elems == 269'722 + 16 * 32 + 64 + 32 * 64 + 128);
}

TEST_CASE("the input is --size where it is given; channels as --size says, or the text, or 3") {
    const auto backend = make_backend("cpu");
    const auto input = [&](const std::string& text, const char* size) {
        const Model model(text + "\nconv2d c out 4 size 3\navgpool 1\nlinear fc out classes\n",
                          {.size = *parse_input_size(size)}, *backend);
        return model.input();
    };
    CHECK(input("input 9", "8x7") == InputSize(8, 7, 3));
    CHECK(input("input 9x5x1", "8") == InputSize(8, 8, 1));
    CHECK(input("input 9x5x1", "8x7x3") == InputSize(8, 7, 3));
    CHECK(input("input 9", "8x7x1") == InputSize(8, 7, 1));
    Model grey(model_text("resnet18"), {.size = {28, 20, 1}}, *backend);
    CHECK(grey.input() == InputSize(28, 20, 1));
    CHECK(grey.params().find("conv1.weight")->shape == Shape{64, 7, 7, 1});
    CHECK(contains(grey.table(), "28x20x1"));
    CHECK(grey.lines()[0].output == Shape{1, 14, 10, 64});
    grey.plan(2, /*training=*/false);
    const std::vector<float> x = random_floats(2 * 28 * 20, 1);
    const Pass pass{false, {}, {}, {}};
    CHECK(grey.forward({const_cast<float*>(x.data()), 2, 28, 20, 1}, pass).C == 3);
    CHECK_THROWS_AS(grey.forward({const_cast<float*>(x.data()), 2, 20, 28, 1}, pass), Error);
}

TEST_CASE("params have torchvision's names and our shapes, in forward order") {
    auto backend = make_backend("cpu");
    Model resnet(model_text("resnet18"), {.name = "resnet18", .classes = 10}, *backend);
    CHECK(resnet.params().find("conv1.weight")->shape == Shape{64, 7, 7, 3});
    CHECK(resnet.params().find("conv1.bias") == nullptr);
    CHECK(resnet.params().find("layer2.0.downsample.0.weight")->shape == Shape{128, 1, 1, 64});
    CHECK(resnet.params().find("layer4.1.bn2.running_var")->shape == Shape{1, 1, 1, 512});
    CHECK(resnet.params().find("fc.weight")->shape == Shape{10, 1, 1, 512});
    CHECK(resnet.params().find("layer1.0.downsample.0.weight") == nullptr);
    std::vector<std::string> names;
    for (Param* param : resnet.params().all())
        if (param->name.starts_with("layer2.0") && !param->running) names.push_back(param->name);
    CHECK(names == std::vector<std::string>{
                       "layer2.0.conv1.weight", "layer2.0.bn1.weight", "layer2.0.bn1.bias",
                       "layer2.0.conv2.weight", "layer2.0.bn2.weight", "layer2.0.bn2.bias",
                       "layer2.0.downsample.0.weight", "layer2.0.downsample.1.weight",
                       "layer2.0.downsample.1.bias"});
    for (Param* param : resnet.params().all())
        CHECK(param->decay == (param->name.ends_with(".weight") && param->shape.N > 1));

    Bare alexnet("alexnet", 10);
    CHECK(alexnet.params.find("features.3.weight")->shape == Shape{192, 5, 5, 64});
    CHECK(alexnet.params.find("classifier.1.weight")->flat == std::vector<Shape>{{1, 6, 6, 256}});
    CHECK(alexnet.params.find("classifier.4.weight")->flat.empty());
    CHECK(alexnet.params.find("classifier.6.bias")->shape == Shape{1, 1, 1, 10});
}

TEST_CASE("the table lists layers with shapes, parameters and GFLOP, within 100 columns") {
    auto backend = make_backend("cpu");
    Model model(model_text("resnet50"),
                {.name = "resnet50", .classes = 3, .freeze = "conv1,layer1"}, *backend);
    const std::string table = model.table();
    // The first convolution: 2 · 112² · 64 · 7·7·3 = 0.236 GFLOP
    CHECK(first_lines(table, 4) ==
          "layer                                                                  output   "
          "parameters    GFLOP\n"
          "input                                                               224x224x3\n"
          "conv1                    conv2d 64 7x7 stride 2 pad 3, frozen      112x112x64        "
          "9,408    0.236\n"
          "bn1                      batchnorm + relu                          112x112x64          "
          "128\n");
    CHECK(contains(table, "layer3.0.bn3             batchnorm + shortcut + relu"));
    CHECK(contains(table, "fc                       linear 3 "));
    CHECK(contains(table, "23,514,179"));
    for (size_t at = 0, end; at < table.size(); at = end + 1) {
        end = table.find('\n', at);
        CHECK(end - at <= 100);
    }
    CHECK(model.layer_of(*model.params().find("fc.bias")) == "fc (linear 3)");
    CHECK(model.layer_of(*model.params().find("layer1.0.bn3.weight")) ==
          "layer1.0.bn3 (batchnorm + shortcut + relu)");
}

TEST_CASE("freezing takes the first N layers or prefixes, and says what it cannot find") {
    const auto frozen = [](const std::string& freeze) {
        auto backend = make_backend("cpu");
        const char* text =
            "input 8\nconv2d conv1 out 4 size 3\nbatchnorm bn1\nconv2d conv2 out 4 size 3\n"
            "batchnorm bn2\navgpool 1\nlinear fc out classes\n";
        Model model(text, {.name = "net", .freeze = freeze}, *backend);
        std::set<std::string> names;
        for (Param* param : model.params().all())
            if (param->frozen) names.insert(layer_name(*param));
        return names;
    };
    using Names = std::set<std::string>;
    CHECK(frozen("") == Names{});
    CHECK(frozen("0") == Names{});
    CHECK(frozen("3") == Names{"conv1", "bn1", "conv2"});
    CHECK(frozen("bn") == Names{"bn1", "bn2"});
    CHECK(frozen("conv1,bn1.") == Names{"conv1", "bn1"});
    CHECK_FAILS(frozen("cnv"), "'cnv'; the layers are conv1, bn1, conv2");
    CHECK_FAILS(frozen("99"), "--freeze 99: the model has only 5");
    CHECK_FAILS(frozen("5"), "--freeze 5");
    CHECK_FAILS(frozen("conv1,,"), "--freeze conv1,,");
}

TEST_CASE("a model is a built-in name or a file, and another word lists the names") {
    CHECK_FAILS(
        model_text("resnet19"),
        "alexnet, convnext_tiny, densenet121, densenet169, efficientnet_b0, efficientnet_lite0, "
        "efficientnet_lite1, efficientnet_lite2, googlenet, mobilenet_v2");
    CHECK_FAILS(model_text("restnet18"), "did you mean resnet18?");
    TempDir dir;
    CHECK_THROWS_AS(model_text(dir.path().string()), Error);
    std::ofstream(dir / "net.txt") << "input 9\nflatten\nlinear fc out classes\n";
    CHECK(input_of(dir / "net.txt") == InputSize(9, 9, 0));
    for (const std::string& name : built_in_models()) CHECK(input_of(name).H >= 32);
}

TEST_CASE("start values are torchvision's: He by fan-out, uniform by fan-in, normal 0.01") {
    const auto init = [](const char* name, const char* param) {
        return Bare(name).params.find(param)->init;
    };
    const Init conv = init("resnet18", "layer1.0.conv1.weight");
    CHECK(conv.kind == Init::kNormal);
    CHECK(conv.value == doctest::Approx(std::sqrt(2.0 / (64 * 9))));
    const Init fc = init("resnet18", "fc.bias");
    CHECK(fc.kind == Init::kUniform);
    CHECK(fc.value == doctest::Approx(1 / std::sqrt(512.0)));
    const Init alexnet = init("alexnet", "features.3.weight");
    CHECK(alexnet.kind == Init::kUniform);
    CHECK(alexnet.value == doctest::Approx(1 / std::sqrt(64.0 * 25)));
    CHECK(init("resnet18", "bn1.weight").value == 1);
}

TEST_CASE("planned memory: vgg16 needs far less than the sum, and evaluation far less again") {
    const auto bytes = [](bool training, bool plain) {
        auto backend = make_backend("cpu");
        // The classifier's weights are no activations; smaller ones make a faster test.
        std::string text = model_text("vgg16");
        for (size_t at; (at = text.find("4096")) != std::string::npos;) text.replace(at, 4, "256");
        Model model(text, {.name = "vgg16", .size = 64, .plain = plain}, *backend);
        return double(model.plan(16, training));
    };
    const double shared = bytes(true, false), apart = bytes(true, true);
    CHECK(shared < 0.6 * apart);
    // Kept for the backward pass: 13 convolutions, 5 pools with a byte an output; at its peak two
    // gradients of the largest layer beside them.
    const double image = 64 * 64 * 64 * 4.0;  // bytes after the first convolution
    const double kept = image * (2 + 0.25 + 1 + 0.125 + 0.75 + 0.0625 + 0.375 + 0.0625 + 0.1);
    CHECK(shared < 16 * (kept * 1.1 + 2 * image));
    CHECK(bytes(false, false) < 16 * 2.3 * image);
}

TEST_CASE("memory of passes is given back, weights stay, and a twin takes more images") {
    for (const std::string& name : {std::string("cpu"), kernel_device()}) {
        CAPTURE(name);
        const auto backend = make_backend(name, {.threads = 1});
        Model model("input 8\nconv2d c out 4 size 3\nrelu\nflatten\nlinear fc out classes\n", {},
                    *backend);
        const auto logits_of_two = [&](Model& one) {
            const std::vector<float> x = random_floats(2 * 8 * 8 * 3, 1);
            float* const there = backend->alloc(x.size());
            backend->upload(there, x.data(), x.size() * sizeof(float));
            const Tensor logits = one.forward({there, 2, 8, 8, 3}, Pass{false, {}, {}, {}});
            std::vector<float> values(logits.elems());
            backend->download(values.data(), logits.data, values.size() * sizeof(float));
            return values;
        };
        const size_t blocks = backend->blocks();
        model.plan(2, /*training=*/true);
        float* const pinned = backend->alloc_host(100);
        pinned[99] = 1;
        const std::vector<float> before = logits_of_two(model);
        const size_t bytes = backend->device_bytes();
        CHECK(backend->blocks() == blocks + 3);
        const auto twin = model.twin();
        backend->release_after(blocks);
        CHECK(backend->blocks() == blocks);
        CHECK((bytes == 0 || backend->device_bytes() < bytes));
        twin->plan(5, /*training=*/true);
        CHECK(logits_of_two(*twin) == before);
    }
}
