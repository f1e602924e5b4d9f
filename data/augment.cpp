// augment.cpp — torchvision's classification transforms with counter-based random numbers.
#include "data/augment.h"

#include <algorithm>
#include <cmath>

#include "src/base/check.h"
#include "src/base/random.h"

namespace convoy {

Crop random_resized_crop(int H, int W, uint64_t seed, uint32_t epoch, uint64_t sample) {
    constexpr double kMinRatio = 3.0 / 4, kMaxRatio = 4.0 / 3;
    Random random(seed, epoch, sample, kCrop);
    const double area = double(H) * W, log_range = std::log(kMaxRatio / kMinRatio);
    for (int attempt = 0; attempt < 10; ++attempt) {
        const double part = area * (0.08 + 0.92 * random.uniform());
        const double ratio = kMinRatio * std::exp(log_range * random.uniform());
        const int w = int(std::nearbyint(std::sqrt(part * ratio)));
        const int h = int(std::nearbyint(std::sqrt(part / ratio)));
        if (w < 1 || h < 1 || w > W || h > H) continue;
        const int top = int(random.below(uint64_t(H - h) + 1));
        return {top, int(random.below(uint64_t(W - w) + 1)), h, w};
    }
    // An image so long that nothing fitted: the largest central part with a permitted ratio.
    int h = H, w = W;
    if (W < kMinRatio * H) h = int(std::nearbyint(W / kMinRatio));
    if (W > kMaxRatio * H) w = int(std::nearbyint(H * kMaxRatio));
    return {(H - h) / 2, (W - w) / 2, h, w};
}

bool random_flip(uint64_t seed, uint32_t epoch, uint64_t sample) {
    return Random(seed, epoch, sample, kFlip).uniform() < 0.5f;
}

Crop input_crop(int H, int W, const Preprocess& how, uint32_t epoch, uint64_t sample) {
    if (how.augment != Augment::crop) return {0, 0, H, W};
    return random_resized_crop(H, W, how.seed, epoch, sample);
}

Resizing input_resizing(int H, int W, const Preprocess& how, uint32_t epoch, uint64_t sample) {
    if (how.augment != Augment::none)
        return {
            how.size, how.size, {0, 0, how.size, how.size}, random_flip(how.seed, epoch, sample)};
    // Only the centre is computed, so an image of 1×100,000 costs no more than another.
    const int shorter = how.size * 256 / 224;
    const int64_t longer = int64_t(shorter) * std::max(H, W) / std::min(H, W);
    if (longer > INT32_MAX) fail("an image of ", W, "x", H, " is too long to resize");
    const int out_H = H <= W ? shorter : int(longer), out_W = H <= W ? int(longer) : shorter;
    const auto centre = [&](int n) { return int(std::nearbyint((n - how.size) / 2.0)); };
    return {out_H, out_W, {centre(out_H), centre(out_W), how.size, how.size}, false};
}

void input_row(const Image& part, const Preprocess& how, uint32_t epoch, uint64_t sample,
               Resizer& resizer, float* row) {
    const float scale[] = {how.scale(0), how.scale(1), how.scale(2)};
    const float bias[] = {how.bias(0), how.bias(1), how.bias(2)};
    resizer.run(view(part), input_resizing(part.H, part.W, how, epoch, sample), scale, bias, row);
}

std::vector<float> pixel_values(const Preprocess& how) {
    std::vector<float> values;
    for (int c = 0; c < 3; ++c)
        for (int pixel = 0; pixel < 256; ++pixel)
            values.push_back(float(pixel) * how.scale(c) + how.bias(c));
    return values;
}

}  // namespace convoy
