// tensor.h — a view of floats with a shape. It never owns: memory belongs to a Backend.
//
// One layout from the decoded JPEG to the logits: NHWC, the channel fastest. Weights of a
// convolution are K×R×S×C (so N is K, H is R, W is S), of a linear layer out×in (N×1×1×C).
//
// Letters with one meaning everywhere; in lower case an index along it:
//   N    images of the batch          K    output channels
//   H W C  input rows, columns, channels   P Q  output rows, columns
//   R S  filter rows, columns         x y w  input, output, weights; dx dy dw  their gradients
#pragma once

#include <cstddef>
#include <string>

#include "src/base/check.h"

namespace convoy {

struct Shape {
    int N = 0, H = 1, W = 1, C = 1;

    size_t elems() const { return size_t(N) * H * W * C; }
    size_t row_elems() const { return size_t(H) * W * C; }  // of one image
    bool operator==(const Shape&) const = default;
    std::string text() const { return cat(N, "x", H, "x", W, "x", C); }
};

struct Tensor {
    float* data = nullptr;
    int N = 0, H = 1, W = 1, C = 1;

    Tensor() = default;
    Tensor(float* data, int N, int H, int W, int C) : data(data), N(N), H(H), W(W), C(C) {}
    Tensor(float* data, Shape s) : data(data), N(s.N), H(s.H), W(s.W), C(s.C) {}

    Shape shape() const { return {N, H, W, C}; }
    size_t elems() const { return shape().elems(); }
    explicit operator bool() const { return data != nullptr; }
};

}  // namespace convoy
