// models.cpp — the built-in networks (model_text.h), with torchvision's names of params; those of
// inverted residuals are in models_mobile.cpp.
#include <algorithm>
#include <fstream>
#include <sstream>

#include "src/model/model.h"
#include "src/model/models.h"

namespace convoy {
namespace {

// For the generated set: 64x64, 29 MFLOP per image. It is deep rather than wide, because a layer
// can tell corners from curves only if its receptive field covers much of the shape.
std::string tiny() {
    std::string text = "input 64\n";
    int block = 0;
    for (int out : {16, 32, 64, 64, 128})
        text += cat(++block > 1 ? "maxpool size 2\n" : "", "conv2d conv", block, " out ", out,
                    " size 3 pad 1 bias no\nbatchnorm bn", block, "\nrelu\n");
    return text + "avgpool 1\nlinear fc out classes\n";
}

// Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014).
constexpr const char* kAlexnet = R"(input 224
conv2d features.0 out 64 size 11 stride 4 pad 2 init uniform
relu
maxpool size 3 stride 2
conv2d features.3 out 192 size 5 pad 2 init uniform
relu
maxpool size 3 stride 2
conv2d features.6 out 384 size 3 pad 1 init uniform
relu
conv2d features.8 out 256 size 3 pad 1 init uniform
relu
conv2d features.10 out 256 size 3 pad 1 init uniform
relu
maxpool size 3 stride 2
avgpool 6
flatten
dropout 0.5
linear classifier.1 out 4096
relu
dropout 0.5
linear classifier.4 out 4096
relu
linear classifier.6 out classes
)";

// Simonyan, Zisserman, "Very Deep Convolutional Networks" (2014). Five stages of 3x3 convolutions;
// `depths` counts the convolutions of each. norm: batch norm follows each convolution.
std::string vgg(const std::vector<int>& depths, bool norm = false) {
    std::string text = "input 224\n";
    int index = 0, stage = 0;  // torchvision counts convolutions, norms, relus and pools
    for (int depth : depths) {
        const int K = std::min(64 << stage++, 512);
        for (int i = 0; i < depth; ++i, index += norm ? 3 : 2)
            text += cat("conv2d features.", index, " out ", K, " size 3 pad 1\n",
                        norm ? cat("batchnorm features.", index + 1, "\n") : "", "relu\n");
        text += "maxpool size 2\n";
        ++index;
    }
    return text + R"(avgpool 7
flatten
linear classifier.0 out 4096 init 0.01
relu
dropout 0.5
linear classifier.3 out 4096 init 0.01
relu
dropout 0.5
linear classifier.6 out classes init 0.01
)";
}

// He et al., "Deep Residual Learning" (2015). blocks: the number in each stage; three stages are
// the form for CIFAR-10, option B. A bottleneck is 1x1, 3x3 (with the stride, as in torchvision),
// 1x1. Its output has 256 channels in the first stage. first_width: channels of the first 3x3.
// Wide: Zagoruyko, Komodakis, "Wide Residual Networks" (2016). groups: Xie et al., "Aggregated
// Residual Transformations" (2016).
std::string resnet(const std::vector<int>& blocks, bool bottleneck, int first_width = 64,
                   int groups = 1) {
    const bool small = blocks.size() == 3;
    int channels = small ? first_width : 64;
    std::string text = small ? "input 32\n" + conv_norm("conv1", "bn1", channels, 3, 1) + "relu\n"
                             : "input 224\n" + conv_norm("conv1", "bn1", channels, 7, 2) +
                                   "relu\nmaxpool size 3 stride 2 pad 1\n";
    for (size_t stage = 0; stage < blocks.size(); ++stage)
        for (int block = 0; block < blocks[stage]; ++block) {
            const int width = first_width << stage, out = bottleneck ? 256 << stage : width;
            const int stride = stage > 0 && block == 0 ? 2 : 1;
            text += cat("residual layer", stage + 1, ".", block, "\n");
            if (bottleneck) {
                text += conv_norm("conv1", "bn1", width, 1, 1) + "  relu\n";
                text += conv_norm("conv2", "bn2", width, 3, stride, groups) + "  relu\n";
                text += conv_norm("conv3", "bn3", out, 1, 1);
            } else {
                text += conv_norm("conv1", "bn1", width, 3, stride) + "  relu\n";
                text += conv_norm("conv2", "bn2", out, 3, 1);
            }
            if (stride > 1 || channels != out)
                text += "shortcut\n" + conv_norm("downsample.0", "downsample.1", out, 1, stride);
            text += "end\n";
            channels = out;
        }
    return text + "avgpool 1\nlinear fc out classes\n";
}

// Radosavovic et al., "Designing Network Design Spaces" (2020). A group has 8 channels.
std::string regnet_y_400mf() {
    std::string text = "input 224\n" + conv_norm_act("stem", 32, " size 3 stride 2 pad 1", "relu");
    const std::pair<int, int> stages[] = {{48, 1}, {104, 3}, {208, 6}, {440, 6}};
    int in = 32, index = 0;
    for (const auto& [out, blocks] : stages) {
        ++index;
        for (int block = 0; block < blocks; ++block, in = out) {
            const int stride = block == 0 ? 2 : 1;
            text +=
                cat("residual trunk_output.block", index, ".block", index, "-", block, "\n") +
                conv_norm_act("f.a", out, " size 1", "relu") +
                conv_norm_act("f.b", out, cat(" size 3 stride ", stride, " pad 1 groups ", out / 8),
                              "relu") +
                excite("f.se.", out, (in + 2) / 4, "relu", "sigmoid") +
                conv_norm_act("f.c", out, " size 1");
            if (block == 0) text += "shortcut\n" + conv_norm_act("proj", out, " size 1 stride 2");
            text += "end\n";
        }
    }
    return text + "avgpool 1\nlinear fc out classes init 0.01\n";
}

// Iandola, Han, Moskewicz, Ashraf, Dally, Keutzer, "SqueezeNet" (2016), release 1.1. torchvision's
// start values have the same deviations, but are uniform.
std::string squeezenet1_1() {
    const auto conv = [](const std::string& name, int out, const char* rest) {
        return cat("conv2d ", name, " out ", out, rest, " init he_in\nrelu\n");
    };
    const std::string pool = "maxpool size 3 stride 2 ceil yes\n";
    std::string text = "input 224\n" + conv("features.0", 64, " size 3 stride 2") + pool;
    int index = 3;  // torchvision counts pools
    for (int squeeze : {16, 16, 0, 32, 32, 0, 48, 48, 64, 64}) {
        const std::string fire = cat("features.", index++, ".");
        if (squeeze)
            text += conv(fire + "squeeze", squeeze, " size 1") + "branches\n" +
                    conv(fire + "expand1x1", 4 * squeeze, " size 1") + "|\n" +
                    conv(fire + "expand3x3", 4 * squeeze, " size 3 pad 1") + "end\n";
        else
            text += pool;
    }
    return text +
           "dropout 0.5\nconv2d classifier.1 out classes size 1 init 0.01\nrelu\navgpool 1\n";
}

// Huang, Liu, van der Maaten, Weinberger, "Densely Connected Convolutional Networks" (2016). Each
// layer appends 32 channels to its input.
std::string densenet(const std::vector<int>& blocks) {
    const auto norm_conv = [](const std::string& at, const char* norm, const char* conv, int out,
                              const char* window) {
        return cat("  batchnorm ", at, norm, "\n  relu\n  conv2d ", at, conv, " out ", out, window,
                   " bias no init he_in\n");
    };
    std::string text =
        "input 224\nconv2d features.conv0 out 64 size 7 stride 2 pad 3 bias no init he_in\n"
        "batchnorm features.norm0\nrelu\nmaxpool size 3 stride 2 pad 1\n";
    int channels = 64, block = 0;
    for (int layers : blocks) {
        if (block++ > 0) {
            channels /= 2;
            text += norm_conv(cat("features.transition", block - 1, "."), "norm", "conv", channels,
                              " size 1") +
                    "avgpool size 2\n";
        }
        for (int layer = 1; layer <= layers; ++layer, channels += 32) {
            const std::string at = cat("features.denseblock", block, ".denselayer", layer, ".");
            text += "branches\n|\n" + norm_conv(at, "norm1", "conv1", 128, " size 1") +
                    norm_conv(at, "norm2", "conv2", 32, " size 3 pad 1") + "end\n";
        }
    }
    return text + "batchnorm features.norm5\nrelu\navgpool 1\nlinear classifier out classes\n";
}

// Szegedy et al., "Going Deeper with Convolutions" (2014), as in torchvision with batch norm and
// 3x3 instead of 5x5, but only with the last of three heads. The input's mean and deviation are
// those of torchvision's transform_input.
std::string googlenet() {
    const auto conv = [](const std::string& at, int out, const char* window) {
        return cat("conv2d ", at, ".conv out ", out, window, " bias no init 0.01\nbatchnorm ", at,
                   ".bn eps 0.001\nrelu\n");
    };
    const std::string pool = "maxpool size 3 stride 2 ceil yes\n";
    std::string text = "input 224 mean 0.5 std 0.5\n" +
                       conv("conv1", 64, " size 7 stride 2 pad 3") + pool +
                       conv("conv2", 64, " size 1") + conv("conv3", 192, " size 3 pad 1") + pool;
    struct {
        const char* name;
        int one, reduce3, three, reduce5, five, after_pool;
    } blocks[] = {
        {"3a", 64, 96, 128, 16, 32, 32},     {"3b", 128, 128, 192, 32, 96, 64},
        {"4a", 192, 96, 208, 16, 48, 64},    {"4b", 160, 112, 224, 24, 64, 64},
        {"4c", 128, 128, 256, 24, 64, 64},   {"4d", 112, 144, 288, 32, 64, 64},
        {"4e", 256, 160, 320, 32, 128, 128}, {"5a", 256, 160, 320, 32, 128, 128},
        {"5b", 384, 192, 384, 48, 128, 128},
    };
    for (const auto& b : blocks) {
        const std::string at = cat("inception", b.name, ".branch");
        if (at == "inception4a.branch") text += pool;
        if (at == "inception5a.branch") text += "maxpool size 2 ceil yes\n";
        text += "branches\n" + conv(at + "1", b.one, " size 1") + "|\n" +
                conv(at + "2.0", b.reduce3, " size 1") +
                conv(at + "2.1", b.three, " size 3 pad 1") + "|\n" +
                conv(at + "3.0", b.reduce5, " size 1") + conv(at + "3.1", b.five, " size 3 pad 1") +
                "|\nmaxpool size 3 stride 1 pad 1 ceil yes\n" +
                conv(at + "4.1", b.after_pool, " size 1") + "end\n";
    }
    return text + "avgpool 1\ndropout 0.2\nlinear fc out classes init 0.01\n";
}

// Liu, Mao, Wu, Feichtenhofer, Darrell, Xie, "A ConvNet for the 2020s" (2022), without its
// stochastic depth.
std::string convnext_tiny() {
    const std::string eps = " eps 0.000001\n", init = " init 0.02\n";
    const std::pair<int, int> stages[] = {{96, 3}, {192, 3}, {384, 9}, {768, 3}};
    std::string text = cat("input 224\nconv2d features.0.0 out 96 size 4 stride 4", init,
                           "layernorm features.0.1", eps);
    int index = 0;
    for (const auto& [out, blocks] : stages) {
        if (++index > 1) {
            text += cat("layernorm features.", index, ".0", eps, "conv2d features.", index,
                        ".1 out ", out, " size 2 stride 2", init);
            ++index;
        }
        for (int block = 0; block < blocks; ++block)
            text += cat("residual features.", index, ".", block, " relu no\n  conv2d block.0 out ",
                        out, " size 7 pad 3 groups ", out, init, "  layernorm block.2", eps,
                        "  pointwise block.3 out ", 4 * out, init, "  gelu\n  pointwise block.5 ",
                        "out ", out, init, "  scale layer_scale start 0.000001\nend\n");
    }
    return text + "avgpool 1\nlayernorm classifier.0" + eps + "flatten\nlinear classifier.2 out " +
           "classes" + init;
}

// Ma, Zhang, Zheng, Sun, "ShuffleNet V2" (2018). The first block of a stage filters its whole input
// in both branches; the others pass half of the channels on.
std::string shufflenet_v2_x1_0() {
    std::string text = "input 224\n" + conv_norm("conv1.0", "conv1.1", 24, 3, 2) +
                       "relu\nmaxpool size 3 stride 2 pad 1\n";
    const std::pair<int, int> stages[] = {{116, 4}, {232, 8}, {464, 4}};
    int in = 24, stage = 1;
    for (const auto& [out, blocks] : stages) {
        ++stage;
        for (int block = 0; block < blocks; ++block) {
            const std::string at = cat("stage", stage, ".", block, ".branch");
            const int half = out / 2, stride = block == 0 ? 2 : 1;
            const auto conv = [&](const char* name, const char* norm, int groups) {
                const bool depthwise = groups > 1;
                text += conv_norm(at + name, at + norm, depthwise ? groups : half,
                                  depthwise ? 3 : 1, depthwise ? stride : 1, groups);
                if (!depthwise) text += "  relu\n";
            };
            text += block == 0 ? "branches shuffle yes\n" : "branches split yes shuffle yes\n";
            if (block == 0) conv("1.0", "1.1", in), conv("1.2", "1.3", 1);
            text += "|\n";
            conv("2.0", "2.1", 1), conv("2.3", "2.4", half), conv("2.5", "2.6", 1);
            text += "end\n";
        }
        in = out;
    }
    return text + conv_norm("conv5.0", "conv5.1", 1024, 1, 1) +
           "relu\navgpool 1\nlinear fc out classes\n";
}

// Schindler, Lidy, Rauber, "Comparing Shallow versus Deep Neural Network Architectures for
// Automatic Music Genre Classification" (2016). From the paper: segments of 80 mel bands x 80
// frames, one path with filters and pools along time, one along frequency, 16 filters each, leaky
// relus of slope 0.3, 200 units, dropout 0.1. Our reading: leaky relu and dropout follow the units.
constexpr const char* kShallow = R"(input 80x80x1
branches
  conv2d frequency.conv out 16 size 10x23 pad same
  leaky_relu 0.3
  maxpool size 1x20
  flatten
|
  conv2d time.conv out 16 size 21x20 pad same
  leaky_relu 0.3
  maxpool size 20x1
  flatten
end
linear hidden out 200
leaky_relu 0.3
dropout 0.1
linear fc out classes
)";

const ModelTexts& built_in() {
    static const ModelTexts all = with_mobile_models({
        {"tiny", tiny()},
        {"alexnet", kAlexnet},
        {"vgg11", vgg({1, 1, 2, 2, 2})},
        {"vgg11_bn", vgg({1, 1, 2, 2, 2}, true)},
        {"vgg13", vgg({2, 2, 2, 2, 2})},
        {"vgg13_bn", vgg({2, 2, 2, 2, 2}, true)},
        {"vgg16", vgg({2, 2, 3, 3, 3})},
        {"vgg16_bn", vgg({2, 2, 3, 3, 3}, true)},
        {"vgg19", vgg({2, 2, 4, 4, 4})},
        {"vgg19_bn", vgg({2, 2, 4, 4, 4}, true)},
        {"resnet20", resnet({3, 3, 3}, false, 16)},
        {"resnet18", resnet({2, 2, 2, 2}, false)},
        {"resnet34", resnet({3, 4, 6, 3}, false)},
        {"resnet50", resnet({3, 4, 6, 3}, true)},
        {"resnet101", resnet({3, 4, 23, 3}, true)},
        {"resnet152", resnet({3, 8, 36, 3}, true)},
        {"resnext50_32x4d", resnet({3, 4, 6, 3}, true, 128, 32)},
        {"wide_resnet50_2", resnet({3, 4, 6, 3}, true, 128)},
        {"regnet_y_400mf", regnet_y_400mf()},
        {"squeezenet1_1", squeezenet1_1()},
        {"densenet121", densenet({6, 12, 24, 16})},
        {"densenet169", densenet({6, 12, 32, 32})},
        {"googlenet", googlenet()},
        {"convnext_tiny", convnext_tiny()},
        {"shufflenet_v2_x1_0", shufflenet_v2_x1_0()},
        {"shallow", kShallow},
    });
    return all;
}

}  // namespace

std::vector<std::string> built_in_models() {
    std::vector<std::string> names;
    for (const auto& [name, text] : built_in()) names.push_back(name);
    return names;
}

std::string model_text(const std::string& name) {
    const auto found = built_in().find(name);
    if (found != built_in().end()) return found->second;
    std::ifstream file(name);
    std::ostringstream text;
    if (!file || !(text << file.rdbuf())) {
        const std::string close = nearest(name, built_in_models());
        fail("model '", name, "' is neither a built-in model (", join_text(built_in_models()),
             ") nor a file that can be read",
             close.empty() ? "" : cat("; did you mean ", close, "?"));
    }
    return std::string(without_bom(text.str()));
}

}  // namespace convoy
