// augment.cpp — torchvision's classification transforms with counter-based random numbers.
#include "data/images/augment.h"

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
    // Nothing fits into a very long image: take the largest central part with a permitted ratio.
    int h = H, w = W;
    if (W < kMinRatio * H) h = int(std::nearbyint(W / kMinRatio));
    if (W > kMaxRatio * H) w = int(std::nearbyint(H * kMaxRatio));
    return {(H - h) / 2, (W - w) / 2, h, w};
}

bool flips(Flip flip, uint64_t seed, uint32_t epoch, uint64_t sample) {
    const auto coin = [&](uint32_t thrown_in) {
        return Random(seed, thrown_in, sample, kFlip).uniform() < 0.5f;
    };
    switch (flip) {
        case Flip::random: return coin(epoch);
        case Flip::alternating: return coin(0) != (epoch % 2 == 1);
        default: return false;
    }
}

bool Changes::to_bytes() const {
    return translate > 0 || jitter != Jitter{} || policy != AutoAugment::off;
}

Preprocess Preprocess::for_validation() const {
    Preprocess how = *this;
    how.augment = augment == Augment::resize ? Augment::resize : Augment::none;
    how.changes = {.flip = Flip::off};
    return how;
}

Crop input_crop(int H, int W, const Preprocess& how, uint32_t epoch, uint64_t sample) {
    if (how.augment != Augment::crop) return {0, 0, H, W};
    return random_resized_crop(H, W, how.seed, epoch, sample);
}

Resizing input_resizing(int H, int W, const Preprocess& how, uint32_t epoch, uint64_t sample) {
    const auto [h, w, channels] = how.size;
    if (how.augment != Augment::none)
        return {h, w, {0, 0, h, w}, flips(how.changes.flip, how.seed, epoch, sample)};
    // Only the centre is computed, so an image of 1×100,000 costs no more than another.
    int64_t out_H = h * 256 / 224, out_W = w * 256 / 224;
    if (h == w) {
        int64_t& longer = H > W ? out_H : out_W;
        longer = longer * std::max(H, W) / std::min(H, W);
        if (longer > INT32_MAX) fail("an image of ", W, "x", H, " is too long to resize");
    }
    const auto centre = [](int64_t all, int part) {
        return int(std::nearbyint(double(all - part) / 2));
    };
    return {int(out_H), int(out_W), {centre(out_H, h), centre(out_W, w), h, w}, false};
}

// The resized and changed part in buffers.image. Overwrites size.elems() floats.
static void make_pixels(const Image& part, const Preprocess& how, uint32_t epoch, uint64_t sample,
                        RowBuffers& buffers, float* floats) {
    Image& image = buffers.image;
    buffers.resizer.run(part, input_resizing(part.H, part.W, how, epoch, sample), floats, image);
    const auto random = [&](Purpose purpose) { return Random(how.seed, epoch, sample, purpose); };
    if (const int reach = how.changes.translate; reach > 0) {
        Random draws = random(kTranslate);
        const auto draw = [&] { return int(draws.below(uint64_t(reach) * 2 + 1)) - reach; };
        const int down = draw();
        shift_reflected(down, draw(), image, buffers.spare);
    }
    buffers.steps.clear();
    jitter_steps(how.changes.jitter, random(kJitter), buffers.steps);
    policy_steps(how.changes.policy, image.H, image.W, random(kPolicy), buffers.steps);
    for (const PixelStep& step : buffers.steps) change_pixels(step, image, buffers.spare);
}

void input_row(const Image& part, const Preprocess& how, uint32_t epoch, uint64_t sample,
               RowBuffers& buffers, float* row) {
    const float scale[] = {how.scale(0), how.scale(1), how.scale(2)};
    const float bias[] = {how.bias(0), how.bias(1), how.bias(2)};
    const auto [H, W, C] = how.size;
    if (how.changes.to_bytes()) {
        make_pixels(part, how, epoch, sample, buffers, row);
        normalise_pixels(buffers.image, scale, bias, row);
    } else {
        const Resizing resizing = input_resizing(part.H, part.W, how, epoch, sample);
        buffers.resizer.run(part, resizing, scale, bias, row);
    }
    const Crop out = erased_part(H, W, how.changes.erase, Random(how.seed, epoch, sample, kErase));
    for (int h = out.top; h < out.top + out.H; ++h)
        std::fill_n(row + size_t((h * W + out.left) * C), size_t(out.W * C), 0.0f);
}

void input_row(const Image& part, const Preprocess& how, uint32_t epoch, uint64_t sample,
               RowBuffers& buffers, uint8_t* row) {
    buffers.floats.resize(how.size.elems());
    make_pixels(part, how, epoch, sample, buffers, buffers.floats.data());
    std::ranges::copy(buffers.image.pixels, row);
}

}  // namespace convoy
