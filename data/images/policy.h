// policy.h — which changes an image gets in training: torchvision's ColorJitter, RandAugment,
// TrivialAugmentWide, RandomErasing, MixUp and CutMix with our random numbers. The functions are
// pure: `random` is at the start of its sequence for (seed, epoch, sample).
#pragma once

#include <string>
#include <vector>

#include "data/images/pixel_ops.h"
#include "src/base/random.h"

namespace convoy {

enum class AutoAugment {
    off,
    randaugment,  // two operations of 14, at magnitude 9 of 0 to 30
    trivial,      // one operation of 14, at any of 31 magnitudes, which go further
};

// The largest distance of the factors from 1, and of the hue from 0 turns.
struct Jitter {
    double brightness = 0, contrast = 0, saturation = 0, hue = 0;
    bool operator==(const Jitter&) const = default;
};
// "0.4" (brightness, contrast and saturation), "0.4:0.4:0.2" or, with the hue, "0.4:0.4:0.2:0.1";
// "" for none. Throws Error.
Jitter parse_jitter(const std::string& text);

// Both append operations to `steps`, in the order in which they are applied. H, W: of the image.
void jitter_steps(const Jitter& jitter, Random random, std::vector<PixelStep>& steps);
void policy_steps(AutoAugment policy, int H, int W, Random random, std::vector<PixelStep>& steps);

constexpr int kPolicyOps = 14, kPolicyBins = 31;
// The step for operation `op` at magnitude `bin`. `negative` counts if the operation has two signs.
PixelStep policy_step(AutoAugment policy, int op, int bin, bool negative, int H, int W);

// With probability p, returns a part of the image to set to 0 after normalising: 2 % to 33 % of its
// area, with a ratio of 0.3 to 3.3. Otherwise returns a part with H = 0.
Crop erased_part(int H, int W, double p, Random random);

// How an image is mixed with its partner: image = own·image + (1 − own)·partner. If the box is not
// empty, the box shows the partner instead. The labels have the weights own and 1 − own.
struct Mix {
    float own = 1;
    Crop box{0, 0, 0, 0};
};
// mixup: own is drawn from Beta(mixup, mixup). cutmix: own is the part of the image outside the
// box, and the box has a random place. If both are above 0, one of them is drawn for each image.
Mix draw_mix(double mixup, double cutmix, int H, int W, Random random);
// Mixes two rows of H·W·C floats.
void mix_rows(const Mix& mix, int H, int W, int C, const float* partner, float* row);

}  // namespace convoy
