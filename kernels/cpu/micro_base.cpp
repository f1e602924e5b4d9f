// micro_base.cpp — the inner kernels for the floor of the build, and the choice at run time.
#include "kernels/cpu/micro.h"

namespace {
#if defined(__AVX2__)
constexpr int kWidth = 8, kVecs = 2, kRows = 6, kLane = 8, kLaneRows = 4;
constexpr const char* kName = "AVX2";
#else
constexpr int kWidth = 4, kVecs = 3, kRows = 8, kLane = 8, kLaneRows = 8;
constexpr const char* kName = "128-bit vectors";
#endif
}  // namespace

#include "kernels/cpu/micro_body.h"

namespace convoy {

const Micro& micro_base() {
    static constexpr Micro micro = make_micro(kName);
    return micro;
}

const Micro& pick_micro() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
        return micro_avx512();
#endif
    return micro_base();
}

}  // namespace convoy
