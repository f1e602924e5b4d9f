// pixel_ops.h — changes of 8-bit pixels in place: the operations of torchvision's policies.
//
// Each gives the same pixels as torchvision.transforms.functional on a PIL image (mode RGB, or L
// for one channel), bit for bit. Geometric operations take the nearest pixel and fill with black.
#pragma once

#include <cstdint>

#include "data/images/decode.h"

namespace convoy {

enum class PixelOp : uint8_t {
    identity,
    shear_x,       // amount: the shift, in pixels, from one row to the next
    shear_y,       // from one column to the next
    translate_x,   // pixels to the right
    translate_y,   // pixels down
    rotate,        // degrees, counter-clockwise
    brightness,    // factor: 0 black, 1 unchanged
    saturation,    // factor: 0 grey, 1 unchanged; nothing on one channel
    contrast,      // factor: 0 the mean grey, 1 unchanged
    sharpness,     // factor: 0 blurred, 1 unchanged
    posterize,     // bits that are kept: 1 to 8
    solarize,      // values from here on are inverted
    autocontrast,  // each channel's range becomes 0 to 255
    equalize,      // each channel's histogram becomes flat
    hue,           // turns: -0.5 to 0.5; nothing on one channel
};

struct PixelStep {
    PixelOp op = PixelOp::identity;
    double amount = 0;
    bool operator==(const PixelStep&) const = default;
};

// `spare` lends its memory; its pixels are undefined afterwards.
void change_pixels(PixelStep step, Image& image, Image& spare);

// Moves the image down and to the right, and fills the free pixels with the image mirrored at its
// edge (the edge itself once). |down| < H, |right| < W.
void shift_reflected(int down, int right, Image& image, Image& spare);

// out = pixel · scale[channel] + bias[channel]: H·W·C floats.
void normalise_pixels(const Image& image, const float* scale, const float* bias, float* out);

}  // namespace convoy
