// augment.h — pixels → one normalised input row: crop, resize, flip, normalise.
#pragma once

#include <cstdint>
#include <vector>

#include "data/images/policy.h"
#include "data/images/resize.h"
#include "src/base/input_size.h"

namespace convoy {

enum class Augment {
    crop,    // random resized crop (scale 0.08–1, ratio 3/4–4/3), flip
    resize,  // the whole image scaled to the input, flip; in validation too, without flip
    none,    // validation of crop: shorter side to size·256/224, centre crop; for an input that is
             // no square, height and width each to ·256/224
};

enum class Flip {
    random,       // draws anew in each epoch
    alternating,  // draws in the first epoch; then every epoch does the opposite
    off,
};

// Changes of the resized image in training, in this order.
struct Changes {
    Flip flip = Flip::random;
    int translate = 0;  // moves by up to this many pixels each way, mirrored at the edge
    Jitter jitter = {};
    AutoAugment policy = AutoAugment::off;
    double erase = 0;              // probability that a part of the normalised image becomes 0
    double mixup = 0, cutmix = 0;  // parameters of Beta; the loader mixes images

    // Whether a change works on bytes, between resizing and normalising.
    bool to_bytes() const;
    bool to_floats() const { return erase > 0 || mix(); }  // after normalising
    bool mix() const { return mixup > 0 || cutmix > 0; }
};

struct Preprocess : InputStatistics {
    InputSize size;
    Augment augment = Augment::crop;
    Changes changes = {};
    uint64_t seed = 0;

    explicit Preprocess(InputSize input = 64, const InputStatistics& statistics = {})
        : InputStatistics(statistics.of_channels(input.C)), size(input) {}

    // The same without random changes: whole images if training uses them, else centre crops.
    Preprocess for_validation() const;
};

// torchvision's RandomResizedCrop.get_params with our random numbers. The functions here are pure.
Crop random_resized_crop(int H, int W, uint64_t seed, uint32_t epoch, uint64_t sample);
bool flips(Flip flip, uint64_t seed, uint32_t epoch, uint64_t sample);

// An input row (one image of a batch) is made in two steps, so that a decoder can skip unused
// pixels. input_crop() picks a part of an H×W image. input_resizing() says how that part, now H×W
// itself, is resized. As in torchvision, the filter does not read past the edge of the crop.
Crop input_crop(int H, int W, const Preprocess& how, uint32_t epoch, uint64_t sample);
Resizing input_resizing(int H, int W, const Preprocess& how, uint32_t epoch, uint64_t sample);

// Memory that input_row() keeps from call to call. For one thread at a time.
struct RowBuffers {
    Resizer resizer = {};
    Image image = {}, spare = {};
    std::vector<PixelStep> steps = {};
    std::vector<float> floats = {};
};
// The same for a thread that reads, decodes and resizes images.
struct ImageBuffers {
    explicit ImageBuffers(int channels) : decoder(channels) {}

    Decoder decoder;
    std::vector<uint8_t> bytes = {};
    Image image = {};
    RowBuffers row = {};
};

// Resizes, changes and normalises the part, but does not mix. Writes size.elems() floats to `row`.
void input_row(const Image& part, const Preprocess& how, uint32_t epoch, uint64_t sample,
               RowBuffers& buffers, float* row);
// The same without normalising, for changes that are not to_floats().
void input_row(const Image& part, const Preprocess& how, uint32_t epoch, uint64_t sample,
               RowBuffers& buffers, uint8_t* row);

}  // namespace convoy
