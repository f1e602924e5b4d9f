// pictures.h — pictures for TensorBoard: rows of a batch side by side, and what a validation took
// for what.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "data/augment.h"
#include "src/run/quality.h"
#include "src/run/tensorboard.h"

namespace convoy {

// n rows of a batch (normalised as `how` says), up to eight in a line.
Image rows_picture(const float* rows, int n, const Preprocess& how);

// Up to kMostShown classes: the pairs as a picture (a line a true class, a column a guess; the
// darker, the larger the part of the class) with the most frequent mistakes as its text. And the
// worst mistakes.
constexpr int kMostShown = 256;
void show_quality(TensorBoard& board, const Quality& quality,
                  const std::vector<std::string>& classes, int64_t step);

}  // namespace convoy
