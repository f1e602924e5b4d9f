// device.h — which device runs the CUDA kernels in tests: the emulator, or with CONVOY_TEST_DEVICE=
// cuda:0 a GPU. By default, tests of single ops (each_backend) also run on the CPU and on a GPU.
// These test cases are in the suite `device` (run_tests -ts=device).
#pragma once

#include <cstdlib>
#include <string>

#include "kernels/backend.h"

namespace convoy {

inline std::string given_test_device() {
    const char* name = std::getenv("CONVOY_TEST_DEVICE");
    return name ? name : "";
}

// "simt", or the GPU in CONVOY_TEST_DEVICE; throws Error if it cannot be used.
inline std::string kernel_device() {
    static const std::string device = [] {
        const std::string given = given_test_device();
        if (given.empty()) return std::string("simt");
        make_backend(given);
        return given;
    }();
    return device;
}
inline bool on_gpu() { return kernel_device() != "simt"; }

}  // namespace convoy
