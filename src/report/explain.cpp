#include "src/report/explain.h"

#include <algorithm>
#include <cmath>
#include <regex>
#include <set>

#include "src/base/check.h"
#include "src/checkpoint/weights.h"

namespace convoy {

// The first layer of the outline after A.
static size_t end_of_maps(const std::vector<TopLayer>& outline) {
    const std::set<std::string> windows = {"conv2d", "residual", "branches"};
    const std::set<std::string> after = {"maxpool", "avgpool", "flatten", "dropout", "linear"};
    size_t end = 0;
    for (size_t i = 0; i + 1 < outline.size(); ++i)
        if (windows.contains(outline[i].kind) &&
            outline[i + 1].input.H * outline[i + 1].input.W > 1)
            end = i + 1;
    if (end == 0) fail("--explain: no convolution of this model leaves more than one pixel");
    while (end + 1 < outline.size() && !after.contains(outline[end].kind)) ++end;
    return end;
}

Explainer::Explainer(const TrainedModel& trained, int max_batch) : backend_(*trained.backend) {
    // As in evaluation, but with a backward pass: no dropout, and frozen norms. No layers are
    // fused, because then the gradient at A would be the gradient of the layer before A.
    const std::string text = std::regex_replace(
        trained.card.model_text, std::regex("(^|\n)([ \t]*dropout)[ \t]+[^ \t\n]+"), "$1$2 0");
    ModelOptions options = trained.card.options();
    options.plain = options.head_only = true;
    whole_ = std::make_unique<Model>(text, options, backend_);
    import_weights(read_safetensors(trained.file), *whole_, backend_, /*partial=*/false);
    const size_t end = end_of_maps(whole_->outline());
    lower_ = whole_->part({0, end}), upper_ = whole_->part({end});
    lower_->plan(max_batch, false);
    upper_->plan(max_batch, true);
    shape_ = whole_->outline()[end].input;
    const size_t most =
        std::max({shape_.row_elems(), whole_->input().elems(), trained.card.classes.size()});
    floats_ = backend_.alloc(size_t(max_batch) * most);
}

std::vector<float> Explainer::floats_of(Tensor tensor) {
    std::vector<float> values(tensor.elems());
    backend_.copy({floats_, tensor.shape()}, tensor);
    backend_.download(values.data(), floats_, values.size() * sizeof(float));
    return values;
}

std::vector<float> Explainer::run(Tensor images, std::span<const int> classes) {
    const Tensor a = lower_->forward(images, {/*training=*/false, {}, {}, {}});
    const std::vector<float> values = floats_of(a);
    const Pass pass;
    upper_->forward(a, pass);
    const Tensor dlogits = upper_->dlogits(images.N);
    std::vector<float> one(dlogits.elems());
    for (size_t n = 0; n < classes.size(); ++n)
        one[n * dlogits.shape().row_elems() + size_t(classes[n])] = 1;
    backend_.upload(floats_, one.data(), one.size() * sizeof(float));
    backend_.copy(dlogits, {floats_, dlogits.shape()});
    GradListener nobody;
    const std::vector<float> gradient = floats_of(upper_->backward(dlogits, pass, nobody));

    const size_t places = size_t(shape_.H) * size_t(shape_.W), C = size_t(shape_.C);
    std::vector<float> maps(classes.size() * places);
    for (size_t n = 0; n < classes.size(); ++n) {
        std::vector<double> weight(C);
        for (size_t i = 0; i < places * C; ++i) weight[i % C] += gradient[n * places * C + i];
        for (size_t p = 0; p < places; ++p) {
            double sum = 0;
            for (size_t c = 0; c < C; ++c)
                sum += weight[c] / double(places) * values[(n * places + p) * C + c];
            maps[n * places + p] = float(std::max(sum, 0.0));
        }
    }
    return maps;
}

Image heat_picture(const float* row, const Preprocess& how, std::span<const float> map, int H,
                   int W) {
    Image small{how.size.H, how.size.W, {}, how.size.C};  // the row, no longer normalised
    for (int i = 0; i < int(how.size.elems()); ++i) {
        const float pixel = (row[i] - how.bias(i % small.C)) / how.scale(i % small.C);
        small.pixels.push_back(uint8_t(std::clamp(std::lround(pixel), 0l, 255l)));
    }
    const int factor = std::max(1, (224 + small.H - 1) / small.H);
    Resizer resizer;
    const Image large = resized(resizer, small, small.H * factor, small.W * factor);
    // The map in bytes, enlarged like the picture.
    Image heat{H, W, {}, 1};
    const float most = std::max(*std::ranges::max_element(map), 1e-30f);
    for (const float value : map) heat.pixels.push_back(uint8_t(std::lround(255 * value / most)));
    heat = resized(resizer, heat, large.H, large.W);

    Image both{large.H, 2 * large.W, std::vector<uint8_t>(heat.pixels.size() * 6), 3};
    for (int h = 0; h < large.H; ++h)
        for (int w = 0; w < large.W; ++w) {
            const size_t at = size_t(h * large.W + w);
            const float x = float(heat.pixels[at]) / 255;
            // Blue, cyan, yellow, red.
            const float colour[] = {std::clamp(4 * x - 2, 0.0f, 1.0f),
                                    std::clamp(2 - std::abs(4 * x - 2), 0.0f, 1.0f),
                                    std::clamp(2 - 4 * x, 0.0f, 1.0f)};
            uint8_t* left = &both.pixels[size_t(h * both.W + w) * 3];
            for (size_t c = 0; c < 3; ++c) {
                left[c] = large.pixels[at * size_t(large.C) + (large.C == 3 ? c : 0)];
                left[c + size_t(large.W) * 3] = uint8_t(0.5f * float(left[c]) + 127 * colour[c]);
            }
        }
    return both;
}

}  // namespace convoy
