// simt_kernels.h — small correct and wrong kernels for the tests of the CUDA emulator.
#pragma once

#include <string>
#include <vector>

namespace convoy::simt {

// Reverses 256 numbers through shared memory, without the barrier that it takes.
std::vector<float> reversed_without_barrier(const std::vector<float>& x);

// Σ x by a kernel that gets its pointers in a struct; freed: the memory of x was freed before.
int sum_through_struct(const std::vector<int>& x, bool freed);

// Launches a kernel with the mistake `what`.
void launch_wrong(const std::string& what);

}  // namespace convoy::simt
