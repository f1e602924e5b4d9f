// gemm_ladder.h — six ways to multiply two matrices, each faster than the one before.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace convoy {

// c[i][j] = Σ_l a[i][l]·b[l][j]: a is I × L, b is L × J, c is I × J, row after row.
struct GemmSize {
    int I, J, L;
    double flops() const { return 2.0 * I * J * L; }
};

struct RungResult {
    std::string name;
    Precision precision;   // what is multiplied is rounded to this
    std::vector<float> c;  // starts as NaN
    double seconds;        // of one product; 0 if it was not timed
};
using RungVisitor = std::function<void(const RungResult&)>;

// Runs each rung once and hands its result over. On GPU 0 rungs are timed as well, and "cuBLAS" is
// a rung of each precision, unless the library cannot be opened: why_no_cublas then says why.
namespace simt {
void climb_gemm_ladder(GemmSize size, std::span<const float> a, std::span<const float> b,
                       const RungVisitor& visit, std::string* why_no_cublas = nullptr);
}  // namespace simt
namespace cuda {  // null in a build without nvcc
[[gnu::weak]] void climb_gemm_ladder(GemmSize size, std::span<const float> a,
                                     std::span<const float> b, const RungVisitor& visit,
                                     std::string* why_no_cublas);
}  // namespace cuda

}  // namespace convoy
