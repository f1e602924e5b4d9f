// explain.h — where in an image a model saw a class: Grad-CAM (Selvaraju et al., "Grad-CAM: Visual
// Explanations from Deep Networks via Gradient-based Localization", 2017).
//
//   image → convolutions → A [h×w×C] → pooling, linear → logit of the class
//   weight[c] = mean over h, w of ∂logit/∂A[h,w,c]      map[h,w] = max(0, Σ_c weight[c]·A[h,w,c])
//
// A is what the last layer with a window leaves, after its norm and rectifier, before pooling.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "src/run/trained_model.h"

namespace convoy {

class Explainer {
 public:
    // Reads the weights of `trained` once more; computes on its backend, which must outlive this.
    // Throws Error where no layer leaves more than one pixel.
    Explainer(const TrainedModel& trained, int max_batch);

    // images: as Model::forward takes them. classes: of each, the one to look for. Returns H()·W()
    // numbers ≥ 0 an image. Blocks.
    std::vector<float> run(Tensor images, std::span<const int> classes);
    // The numbers of such images, or of another activation that is no larger. Blocks.
    std::vector<float> floats_of(Tensor tensor);
    int H() const { return shape_.H; }
    int W() const { return shape_.W; }

 private:
    Backend& backend_;
    std::unique_ptr<Model> whole_;          // the weights
    std::unique_ptr<Model> lower_, upper_;  // until A; from A on
    Shape shape_;                           // of A
    float* floats_;                         // device memory
};

// The picture (an input row, normalised as the model's card says) enlarged to 224 pixels or more,
// and beside it the same under the map: blue where it is least, red where it is greatest.
Image heat_picture(const float* row, const Preprocess& how, std::span<const float> map, int H,
                   int W);

}  // namespace convoy
