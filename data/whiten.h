// whiten.h — filters of a first convolution that make patches of images uncorrelated.
//
//   patch  p = R·S·C neighbouring numbers of a normalised image
//   E[p·pᵀ] = Σ λ·v·vᵀ          eigenvalues λ, largest first, and eigenvectors v
//   filters +v/√(λ + ε), −v/√(λ + ε): their outputs are uncorrelated and have variance 1; after
//   ReLU the second half keeps what the first half loses
//
// Page, "How to train your ResNet" (2019); Jordan, "94% on CIFAR-10 in 3.29 seconds on a single
// GPU" (2024), who adds ε = 0.0005 and keeps the filters fixed.
#pragma once

#include <vector>

#include "data/images/augment.h"
#include "data/sources/source.h"

namespace convoy {

// The 2·R·S·C filters for patches of R x S pixels, [filter][r][s][c], by falling λ: first all with
// +, then all with −. Uses all patches of up to 5,000 images, fewer if they are large, spread over
// the source, and skips images that do not decode. Blocks (up to some seconds). Throws
// Error if no image decodes.
std::vector<float> whitening_filters(const Source& source, const Preprocess& how, int R, int S);

}  // namespace convoy
