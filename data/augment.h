// augment.h — pixels → one normalised input row: crop, resize, flip, normalise.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/decode.h"
#include "data/resize.h"

namespace convoy {

enum class Augment {
    crop,    // random resized crop (scale 0.08–1, ratio 3/4–4/3), random flip
    resize,  // the whole image scaled to size×size, random flip
    none,    // as for validation
};
Augment parse_augment(const std::string& text);  // throws Error naming the choices

struct Preprocess {
    int size = 64;  // input height and width
    Augment augment = Augment::crop;
    uint64_t seed = 0;
    float mean[3] = {0.485f, 0.456f, 0.406f}, std[3] = {0.229f, 0.224f, 0.225f};  // ImageNet's
};

// torchvision's RandomResizedCrop.get_params with our generator; a pure function of its arguments.
Crop random_resized_crop(int H, int W, uint64_t seed, uint32_t epoch, uint64_t sample);
bool random_flip(uint64_t seed, uint32_t epoch, uint64_t sample);

// A training row in two steps, so that a decoder need not make pixels that nobody looks at: which
// part of an image of H×W is used, and size·size·3 floats into `row` from the pixels of that part.
// Both are pure functions of their arguments. A crop is cut out first and resized then, as
// torchvision does it: the filter does not look past its edge. `resizer` only lends its memory.
Crop training_crop(int H, int W, const Preprocess& how, uint32_t epoch, uint64_t sample);
void training_row(const Image& part, const Preprocess& how, uint32_t epoch, uint64_t sample,
                  Resizer& resizer, float* row);
// Validation row of a whole image: shorter side resized to size·256/224, centre crop, normalise.
void validation_row(const Image& image, const Preprocess& how, Resizer& resizer, float* row);

// What the two do, for whoever resizes the pixels himself: the resizing of a part, or image, of
// H×W, and values[c·256 + pixel], the normalised float that each pixel becomes.
Resizing training_resizing(int H, int W, const Preprocess& how, uint32_t epoch, uint64_t sample);
Resizing validation_resizing(int H, int W, const Preprocess& how);
std::vector<float> pixel_values(const Preprocess& how);

}  // namespace convoy
