// explain.h — a map of the pixels that support a class: Grad-CAM (Selvaraju et al., "Grad-CAM:
// Visual Explanations from Deep Networks via Gradient-based Localization", 2017).
//
//   image → convolutions → A [h×w×C] → pooling, linear → logit of the class
//   weight[c] = mean over h, w of ∂logit/∂A[h,w,c]      map[h,w] = max(0, Σ_c weight[c]·A[h,w,c])
//
// A is the output of the last layer with a window, after its norm and rectifier, before pooling.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "src/run/trained_model.h"

namespace convoy {

class Explainer {
 public:
    // Reads the weights of `trained` again and computes on its backend, which must outlive this.
    // Throws Error if no layer leaves more than one pixel.
    Explainer(const TrainedModel& trained, int max_batch);

    // images: as for Model::forward. classes: the class to explain, per image. Returns H()·W()
    // numbers ≥ 0 per image. Blocks.
    std::vector<float> run(Tensor images, std::span<const int> classes);
    // The numbers of such images, or of an activation that is not larger. Blocks.
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

// The picture (an input row, normalised as in the model's card) enlarged to at least 224 pixels,
// and to its right the picture under the map, in colours from blue (least) to red (most).
Image heat_picture(const float* row, const Preprocess& how, std::span<const float> map, int H,
                   int W);

}  // namespace convoy
