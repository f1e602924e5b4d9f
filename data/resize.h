// resize.h — Pillow's antialiased bilinear resize of 8-bit RGB, straight into normalised floats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "data/decode.h"

namespace convoy {

// Pixels of someone else: H rows of W RGB pixels, `row_bytes` apart.
struct ImageView {
    const uint8_t* pixels;
    int H, W;
    size_t row_bytes;
};

// Keeps its memory from call to call. For one thread at a time.
class Resizer {
 public:
    // Resizes `from` to H×W and writes only `window` of the result:
    //   out[p,q,c] = pixel[p,q,c] · scale[c] + bias[c]        window.H × window.W × 3 floats
    // where pixel is what Pillow's resize(…, BILINEAR) gives, bit for bit (0–255). `flip` mirrors
    // the window left to right.
    void run(ImageView from, int H, int W, Crop window, bool flip, const float scale[3],
             const float bias[3], float* out);

 private:
    // Weights of each output place: `count` of them from input place `first` on.
    struct Taps {
        std::vector<int32_t> first, count, weights;  // weights: `stride` a place
        size_t stride = 0;
        void compute(int in, int out, int begin, int size);
    };
    void across(ImageView from, int begin, int rows, int W, bool flip);

    Taps columns_, rows_;
    std::vector<uint8_t> narrow_;         // input rows at output width
    std::vector<uint8_t> last_row_;       // copy of the last input row, padded
    std::vector<int32_t> sums_;           // one output row
    std::vector<float> scales_, biases_;  // one output row
};

}  // namespace convoy
