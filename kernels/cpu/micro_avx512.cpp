// micro_avx512.cpp — the inner kernels for processors with AVX-512 (F, VL, BW, DQ).
#include "kernels/cpu/micro.h"

namespace {
constexpr int kWidth = 16, kVecs = 2, kRows = 14, kLane = 16, kLaneRows = 8;
}  // namespace

#include "kernels/cpu/micro_tile.h"

namespace convoy {

const Micro& micro_avx512() {
    static constexpr Micro micro = make_micro("AVX-512");
    return micro;
}

}  // namespace convoy
