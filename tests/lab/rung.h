// rung.h — the time of one rung of a ladder. Only .cu files include it.
#pragma once

#include <algorithm>
#include <functional>

#include "kernels/cuda/cuda.h"
#include "src/base/clock.h"

namespace convoy::CONVOY_DEVICE {

// Seconds from the first of `repeats` submissions to the end of the last one, on an idle device.
inline double time(const std::function<void()>& submit, int repeats) {
    CUDA_CHECK(cudaDeviceSynchronize());
    const auto begin = Clock::now();
    for (int i = 0; i < repeats; ++i) submit();
    CUDA_LAUNCHED();
    CUDA_CHECK(cudaDeviceSynchronize());
    return seconds_since(begin);
}
// Seconds of one submission, the mean over a tenth of a second. The emulator is not timed: 0.
inline double seconds_of(const std::function<void()>& submit) {
    if (kIsEmulator) return 0;
    const int repeats = int(std::clamp(0.1 / time(submit, 1), 1.0, 1000.0));
    return time(submit, repeats) / repeats;
}

}  // namespace convoy::CONVOY_DEVICE
