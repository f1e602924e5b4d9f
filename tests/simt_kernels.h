// simt_kernels.h — small correct and wrong kernels for the tests of the CUDA emulator.
#pragma once

#include <string>
#include <vector>

namespace convoy::simt {

// Reverses each block of 256 numbers of x through shared memory, with or without the barrier.
std::vector<float> reverse_blocks(const std::vector<float>& x, bool with_barrier);

// Σ x by warp shuffles, then shared memory.
int sum_of(const std::vector<int>& x);

// Σ x by a kernel that gets its pointers in a struct; freed: the memory of x was freed before.
int sum_through_struct(const std::vector<int>& x, bool freed);

// For each thread of a block of 40x3x2: a bit for each coordinate that is as in CUDA.
std::vector<int> coordinates_seen();

// The result of a shuffle for each lane, in a whole warp and in half a warp.
std::vector<unsigned> shuffled();

// The bf16 bits of each number.
std::vector<unsigned> rounded_to_bf16(const std::vector<float>& x);

// Launches a kernel with the mistake `what`.
void launch_wrong(const std::string& what);

}  // namespace convoy::simt
