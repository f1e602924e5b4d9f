// start_values.h — the numbers that weights begin with.
#pragma once

#include <cstddef>
#include <cstdint>

namespace convoy {

// How a row starts. Element i is draw i % 4 of block i / 4 of Random(key, 0, block, kInit), where
// the key is a hash of (seed, the row's name): a row starts the same whatever else is in the model.
struct Init {
    enum Kind { kConstant, kNormal, kUniform } kind = kConstant;
    float value = 0;  // the constant, the standard deviation, or the bound of ±bound
};

// out[i] = element i of a row of kind kNormal or kUniform, for i in [0, n), on so many threads, of
// which the values do not depend.
void draw_start_values(const Init& init, uint64_t key, size_t n, float* out, int threads);

}  // namespace convoy
