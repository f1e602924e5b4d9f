// models.cpp — the built-in networks, in the language of model_text.h.
//
// Names of params are torchvision's, so its checkpoints load. Networks that repeat themselves
// are put together by small functions.
#include <fstream>
#include <map>
#include <sstream>

#include "src/base/text.h"
#include "src/model/model.h"

namespace convoy {
namespace {

// For the generated set: 64x64, 29 MFLOP an image. Corners and curves are told apart only by layers
// that see a good part of the shape, so it is deep rather than wide.
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

// Simonyan, Zisserman, "Very Deep Convolutional Networks" (2014), configuration D.
std::string vgg16() {
    std::string text = "input 224\n";
    int index = 0;  // torchvision counts convolutions, relus and pools
    for (int K : {64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0}) {
        text += K ? cat("conv2d features.", index, " out ", K, " size 3 pad 1\nrelu\n")
                  : cat("maxpool size 2\n");
        index += K ? 2 : 1;
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

std::string conv_norm(const std::string& conv, const std::string& norm, int out, int size,
                      int stride) {
    return cat("  conv2d ", conv, " out ", out, " size ", size,
               stride > 1 ? cat(" stride ", stride) : "", size > 1 ? cat(" pad ", size / 2) : "",
               " bias no\n  batchnorm ", norm, "\n");
}

// He, Zhang, Ren, Sun, "Deep Residual Learning" (2015). `blocks` residual blocks in each of four
// stages; a bottleneck is 1x1, 3x3 (with the stride, as torchvision has it), 1x1 to four times the
// width.
std::string resnet(std::vector<int> blocks, bool bottleneck) {
    std::string text = "input 224\n" + conv_norm("conv1", "bn1", 64, 7, 2) +
                       "relu\nmaxpool size 3 stride 2 pad 1\n";
    int channels = 64;
    for (int stage = 0; stage < 4; ++stage)
        for (int block = 0; block < blocks[stage]; ++block) {
            const int width = 64 << stage, out = bottleneck ? 4 * width : width;
            const int stride = stage > 0 && block == 0 ? 2 : 1;
            text += cat("residual layer", stage + 1, ".", block, "\n");
            if (bottleneck) {
                text += conv_norm("conv1", "bn1", width, 1, 1) + "  relu\n";
                text += conv_norm("conv2", "bn2", width, 3, stride) + "  relu\n";
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

const std::map<std::string, std::string>& built_in() {
    static const std::map<std::string, std::string> all = {
        {"tiny", tiny()},
        {"alexnet", kAlexnet},
        {"vgg16", vgg16()},
        {"resnet18", resnet({2, 2, 2, 2}, false)},
        {"resnet34", resnet({3, 4, 6, 3}, false)},
        {"resnet50", resnet({3, 4, 6, 3}, true)},
    };
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
        fail("--model ", name, " is neither a built-in model (", join_text(built_in_models()),
             ") nor a file that can be read",
             close.empty() ? "" : cat("; did you mean ", close, "?"));
    }
    return text.str();
}

}  // namespace convoy
