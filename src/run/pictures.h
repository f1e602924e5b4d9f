// pictures.h — pictures about training: rows of a batch side by side, and what a validation took
// for what.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "data/augment.h"
#include "data/loader.h"
#include "src/run/tensorboard.h"

namespace convoy {

// n rows of a batch (normalised as `how` says), up to eight in a line.
Image rows_picture(const float* rows, int n, const Preprocess& how);

// What a model took the images of a validation for.
class Mistakes {
 public:
    static constexpr int kMostClasses = 256;  // for a table of all pairs
    static constexpr size_t kMost = 16;       // images kept: the mistakes of highest probability

    // keeps_images: else only pairs are counted.
    Mistakes(int classes, const Preprocess& how, bool keeps_images);

    // logits: n × classes.
    void add(const Batch& batch, std::span<const float> logits);

    // [truth · classes + guess]: images. Floats, to be summed over ranks; none above kMostClasses.
    std::vector<float> pairs;

    // The pairs as a picture (a line a true class, a column a guess; the darker, the larger the
    // part of the class) with the most frequent mistakes as its text; and the worst mistakes of
    // this rank, of images that are no packed ones.
    void show(TensorBoard& board, const std::vector<std::string>& classes, const Source& source,
              int64_t step) const;

 private:
    Image pairs_picture() const;
    std::string pairs_text(const std::vector<std::string>& classes) const;
    struct Mistake {
        float probability;
        int truth, guess;
        uint64_t sample;
        std::vector<float> row;
    };
    const int classes_;
    const Preprocess how_;
    const bool keeps_images_;
    std::vector<Mistake> worst_;  // the worst first
};

}  // namespace convoy
