// augment.h — pixels → one normalised input row: crop, resize, flip, normalise.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "data/resize.h"

namespace convoy {

enum class Augment {
    crop,    // random resized crop (scale 0.08–1, ratio 3/4–4/3), random flip
    resize,  // the whole image scaled to size×size, random flip
    none,    // for validation: shorter side to size·256/224, centre crop
};

struct Preprocess {
    int size = 64;  // input height and width
    Augment augment = Augment::crop;
    uint64_t seed = 0;
    // ImageNet's.
    std::array<float, 3> mean = {0.485f, 0.456f, 0.406f}, std = {0.229f, 0.224f, 0.225f};

    // A pixel from 0 to 255 becomes pixel · scale(c) + bias(c): over 255, minus mean, over std.
    float scale(int c) const { return 1 / (255 * std[size_t(c)]); }
    float bias(int c) const { return -mean[size_t(c)] / std[size_t(c)]; }
};

// torchvision's RandomResizedCrop.get_params with our generator. All functions here are pure
// functions of their arguments.
Crop random_resized_crop(int H, int W, uint64_t seed, uint32_t epoch, uint64_t sample);
bool random_flip(uint64_t seed, uint32_t epoch, uint64_t sample);

// An input row (one image of a batch) is made in two steps, so that a decoder can skip pixels that
// are not used: input_crop() picks a part of an H×W image; input_resizing() says how that part, now
// H×W itself, is resized. As in torchvision the filter does not read past the edge of the crop.
Crop input_crop(int H, int W, const Preprocess& how, uint32_t epoch, uint64_t sample);
Resizing input_resizing(int H, int W, const Preprocess& how, uint32_t epoch, uint64_t sample);

// Writes size·size·3 floats to `row`: the part resized and normalised. `resizer` lends its memory.
void input_row(const Image& part, const Preprocess& how, uint32_t epoch, uint64_t sample,
               Resizer& resizer, float* row);

// The normalisation as a table, for a device that resizes: a pixel becomes values[c·256 + pixel].
std::vector<float> pixel_values(const Preprocess& how);

}  // namespace convoy
