// models_mobile.cpp — the networks of inverted residuals: MobileNet and EfficientNet.
#include <algorithm>
#include <cmath>
#include <span>

#include "src/model/models.h"

namespace convoy {
namespace {

// Rounded, to at least 9/10 of `channels`.
int multiple_of_8(double channels) {
    const int rounded = std::max(8, int(channels + 4) / 8 * 8);
    return rounded < 0.9 * channels ? rounded + 8 : rounded;
}

// Sandler, Howard, Zhu, Zhmoginov, Chen, "MobileNetV2: Inverted Residuals and Linear Bottlenecks"
// (2018). A block widens, filters depthwise, narrows, and adds its input if the shapes are equal.
// MobileNetV3 and EfficientNet have squeeze-and-excitation in it.
struct Inverted {
    int in, size, wide, out, stride, squeezed;  // squeezed 0: no squeeze-and-excitation
    const char *act, *squeeze_act, *gate, *eps = "";
    bool is_v2 = false;  // MobileNetV2: the block and its last norm have other names in torchvision
};
std::string inverted(const std::string& name, const Inverted& b) {
    const bool adds = b.stride == 1 && b.in == b.out;
    std::string text = adds ? cat("residual ", name, " relu no\n") : "";
    const std::string at = cat(adds ? "" : name + ".", b.is_v2 ? "conv." : "block.");
    int part = 0;
    if (b.wide != b.in) text += conv_norm_act(cat(at, part++), b.wide, " size 1", b.act, b.eps);
    text += conv_norm_act(
        cat(at, part++), b.wide,
        cat(" size ", b.size, " stride ", b.stride, " pad ", b.size / 2, " groups ", b.wide), b.act,
        b.eps);
    if (b.squeezed) text += excite(cat(at, part++, "."), b.wide, b.squeezed, b.squeeze_act, b.gate);
    text += b.is_v2 ? conv_norm(cat(at, part), cat(at, part + 1), b.out, 1, 1)
                    : conv_norm_act(cat(at, part), b.out, " size 1", "", b.eps);
    return text + (adds ? "end\n" : "");
}

// MobileNetV2, or else Tan, Le, "EfficientNet" (2019), without its stochastic depth.
struct InvertedStage {
    int widen, size, stride, out, blocks;
};
constexpr InvertedStage kMobileV2[] = {{1, 3, 1, 16, 1}, {6, 3, 2, 24, 2}, {6, 3, 2, 32, 3},
                                       {6, 3, 2, 64, 4}, {6, 3, 1, 96, 3}, {6, 3, 2, 160, 3},
                                       {6, 3, 1, 320, 1}};
constexpr InvertedStage kEfficientB0[] = {{1, 3, 1, 16, 1}, {6, 3, 2, 24, 2},  {6, 5, 2, 40, 2},
                                          {6, 3, 2, 80, 3}, {6, 5, 1, 112, 3}, {6, 5, 2, 192, 4},
                                          {6, 3, 1, 320, 1}};
std::string inverted_stages(std::span<const InvertedStage> stages, bool is_v2) {
    const char* act = is_v2 ? "relu6" : "silu";
    std::string text =
        "input 224\n" + conv_norm_act("features.0", 32, " size 3 stride 2 pad 1", act);
    int in = 32, index = 0;  // torchvision counts the blocks of MobileNetV2, else the stages
    for (const InvertedStage& stage : stages) {
        index += !is_v2;
        for (int block = 0; block < stage.blocks; ++block, in = stage.out)
            text += inverted(
                is_v2 ? cat("features.", ++index) : cat("features.", index, ".", block),
                {in, stage.size, stage.widen * in, stage.out, block == 0 ? stage.stride : 1,
                 is_v2 ? 0 : in / 4, act, "silu", "sigmoid", "", is_v2});
    }
    return text + conv_norm_act(cat("features.", index + 1), 1280, " size 1", act) +
           "avgpool 1\ndropout 0.2\nlinear classifier.1 out classes" +
           (is_v2 ? " init 0.01\n" : "\n");
}

// EfficientNet-Lite (Google, 2020): without squeeze-and-excitation, and with relu6. The names are
// those in the weights that were published for PyTorch.
std::string efficientnet_lite(int size, double width, double depth, const char* dropout) {
    const auto conv = [](const std::string& at, const char* name, const char* norm, int out,
                         const std::string& rest, const char* act) {
        return cat("  conv2d ", at, name, " out ", out, rest, " bias no\n  batchnorm ", at, norm,
                   " eps 0.001\n", act);
    };
    std::string text =
        cat("input ", size, " mean 0.498039 std 0.501961\n",
            conv("", "_conv_stem", "_bn0", 32, " size 3 stride 2 pad same", "relu6\n"));
    int in = 32, index = 0;
    for (const InvertedStage& stage : kEfficientB0) {
        const bool ends = &stage == kEfficientB0 || &stage == std::end(kEfficientB0) - 1;
        const int blocks = ends ? stage.blocks : int(std::ceil(depth * stage.blocks));
        const int out = multiple_of_8(width * stage.out);
        for (int block = 0; block < blocks; ++block, in = out) {
            const int stride = block == 0 ? stage.stride : 1, wide = stage.widen * in;
            const bool adds = stride == 1 && in == out;
            const std::string name = cat("_blocks.", index++), at = adds ? "" : name + ".";
            if (adds) text += cat("residual ", name, " relu no\n");
            if (wide != in) text += conv(at, "_expand_conv", "_bn0", wide, " size 1", "  relu6\n");
            text += conv(at, "_depthwise_conv", "_bn1", wide,
                         cat(" size ", stage.size, " stride ", stride, " pad same groups ", wide),
                         "  relu6\n") +
                    conv(at, "_project_conv", "_bn2", out, " size 1", adds ? "end\n" : "");
        }
    }
    return text + conv("", "_conv_head", "_bn1", 1280, " size 1", "relu6\n") +
           cat("avgpool 1\ndropout ", dropout, "\nlinear _fc out classes\n");
}

// Howard et al., "Searching for MobileNetV3" (2019).
struct MobileBlock {
    int size, wide, out;
    bool squeezes, swishes;  // has squeeze-and-excitation; hardswish, not relu
    int stride;
};
constexpr MobileBlock kMobileSmall[] = {
    {3, 16, 16, 1, 0, 2},  {3, 72, 24, 0, 0, 2},  {3, 88, 24, 0, 0, 1},  {5, 96, 40, 1, 1, 2},
    {5, 240, 40, 1, 1, 1}, {5, 240, 40, 1, 1, 1}, {5, 120, 48, 1, 1, 1}, {5, 144, 48, 1, 1, 1},
    {5, 288, 96, 1, 1, 2}, {5, 576, 96, 1, 1, 1}, {5, 576, 96, 1, 1, 1}};
constexpr MobileBlock kMobileLarge[] = {
    {3, 16, 16, 0, 0, 1},   {3, 64, 24, 0, 0, 2},   {3, 72, 24, 0, 0, 1},   {5, 72, 40, 1, 0, 2},
    {5, 120, 40, 1, 0, 1},  {5, 120, 40, 1, 0, 1},  {3, 240, 80, 0, 1, 2},  {3, 200, 80, 0, 1, 1},
    {3, 184, 80, 0, 1, 1},  {3, 184, 80, 0, 1, 1},  {3, 480, 112, 1, 1, 1}, {3, 672, 112, 1, 1, 1},
    {5, 672, 160, 1, 1, 2}, {5, 960, 160, 1, 1, 1}, {5, 960, 160, 1, 1, 1}};
std::string mobilenet_v3(std::span<const MobileBlock> blocks, int last) {
    const char* eps = " eps 0.001";
    std::string text =
        "input 224\n" + conv_norm_act("features.0", 16, " size 3 stride 2 pad 1", "hardswish", eps);
    int in = 16, index = 0;
    for (const MobileBlock& b : blocks) {
        const int squeezed = multiple_of_8(b.wide / 4);
        text += inverted(cat("features.", ++index),
                         {in, b.size, b.wide, b.out, b.stride, b.squeezes ? squeezed : 0,
                          b.swishes ? "hardswish" : "relu", "relu", "hardsigmoid", eps});
        in = b.out;
    }
    return text + conv_norm_act(cat("features.", index + 1), 6 * in, " size 1", "hardswish", eps) +
           cat("avgpool 1\nlinear classifier.0 out ", last, " init 0.01\nhardswish\ndropout 0.2\n",
               "linear classifier.3 out classes init 0.01\n");
}

}  // namespace

ModelTexts with_mobile_models(ModelTexts others) {
    others.insert({
        {"mobilenet_v2", inverted_stages(kMobileV2, true)},
        {"mobilenet_v3_small", mobilenet_v3(kMobileSmall, 1024)},
        {"mobilenet_v3_large", mobilenet_v3(kMobileLarge, 1280)},
        {"efficientnet_b0", inverted_stages(kEfficientB0, false)},
        {"efficientnet_lite0", efficientnet_lite(224, 1, 1, "0.2")},
        {"efficientnet_lite1", efficientnet_lite(240, 1, 1.1, "0.2")},
        {"efficientnet_lite2", efficientnet_lite(260, 1.1, 1.2, "0.3")},
    });
    return others;
}

}  // namespace convoy
