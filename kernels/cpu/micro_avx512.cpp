// micro_avx512.cpp — the inner kernels for processors with AVX-512 (F, VL, BW, DQ).
#include "kernels/cpu/micro.h"

namespace {
constexpr int kWidth = 16, kVecs = 2, kRows = 14, kLane = 16;
}  // namespace

#include "kernels/cpu/micro_body.h"

namespace convoy {

const Micro& micro_avx512() {
    static const Micro micro{"AVX-512", kWidth,     kRows,       kWidth * kVecs,
                             kLane,     any_by_row, any_by_depth};
    return micro;
}

}  // namespace convoy
