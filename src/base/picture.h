// picture.h — an image inside a packed block: data/pack.h writes it, Backend::resize() reads it.
#pragma once

#include <cstdint>

namespace convoy {

// Offsets are in bytes from the beginning of the block, and multiples of four:
//
//   pixels   H·W·C bytes  RGB or grey, as the result has C, rows without padding: only the part of
//   the image that is read columns  int32        for each column of the result: the first pixel of
//   a row that it takes,
//                         how many, and `column_taps` weights, of which the rest are 0
//   rows     int32        the same for each row of the result, with `row_taps` weights
struct Picture {
    static constexpr int kWeightBits = 22;  // weights of a place sum to about 2^22
    int64_t pixels, columns, rows;
    int H, W;
    int column_taps, row_taps;
};

}  // namespace convoy
