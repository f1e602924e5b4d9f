// micro_base.cpp — the inner kernels for the baseline of the build, and the choice at run time.
#include "kernels/cpu/micro.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {
#if defined(__AVX2__)
constexpr int kWidth = 8, kVecs = 2, kRows = 6, kLane = 8, kLaneRows = 4;
constexpr const char* kName = "AVX2";
#else
constexpr int kWidth = 4, kVecs = 3, kRows = 8, kLane = 8, kLaneRows = 8;
constexpr const char* kName = "128-bit vectors";
#endif
}  // namespace

#include "kernels/cpu/micro_tile.h"

namespace convoy {

const Micro& micro_base() {
    static constexpr Micro micro = make_micro(kName);
    return micro;
}

// Asks the system for permission to use AMX, for all threads. False: no AMX, or refused.
static bool may_use_amx() {
#if defined(__x86_64__) && defined(__linux__)
    unsigned a = 0, b = 0, c = 0, d = 0, low = 0, high = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    if (!(d >> 22 & 1) || !(d >> 24 & 1)) return false;  // AMX-BF16, AMX-TILE
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    constexpr unsigned kTileState = 3u << 17;
    if ((low & kTileState) != kTileState) return false;
    constexpr int kAskPermission = 0x1023, kTileData = 18;  // some systems lack <asm/prctl.h>
    return syscall(SYS_arch_prctl, kAskPermission, kTileData) == 0;
#else
    return false;
#endif
}

const Micro& pick_micro([[maybe_unused]] bool bf16) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")) {
        if (!bf16 || !__builtin_cpu_supports("avx512bf16")) return micro_avx512();
        static const bool amx = may_use_amx();
        if (amx) return micro_amx();
        // VDPBF16PS has twice the multiply-add rate of fp32 on AMD, but half of it on Intel
        // (README.md).
        if (__builtin_cpu_is("amd")) return micro_avx512_bf16();
        return micro_avx512();
    }
#endif
    return micro_base();
}

}  // namespace convoy
