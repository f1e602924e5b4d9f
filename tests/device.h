// device.h — which device runs the CUDA kernels in tests: the emulator, or a GPU.
//
// Without CONVOY_TEST_DEVICE it is the emulator; tests of single ops (each_backend) run on the CPU
// and on a GPU as well. With CONVOY_TEST_DEVICE=cuda:0 a GPU takes the place of the emulator, and
// each_backend runs on it alone. Such test cases are in the suite `device` (run_tests -ts=device).
#pragma once

#include <cstdlib>
#include <string>

#include "kernels/backend.h"

namespace convoy {

// What CONVOY_TEST_DEVICE says; "" without it.
inline std::string given_test_device() {
    const char* name = std::getenv("CONVOY_TEST_DEVICE");
    return name ? name : "";
}

// "simt", or the GPU that was asked for; throws Error where it cannot be used.
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
