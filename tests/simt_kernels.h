// simt_kernels.h — small kernels, right and wrong ones, for the tests of the CUDA emulator.
#pragma once

#include <string>
#include <vector>

namespace convoy::simt {

// The numbers of x, each block of 256 reversed, through shared memory; without its barrier if told.
std::vector<float> reverse_blocks(const std::vector<float>& x, bool with_barrier);

// Σ x by warp shuffles, then shared memory.
int sum_of(const std::vector<int>& x);

// Σ x by a kernel that gets its pointers in a struct; `freed`: x was given back before.
int sum_through_struct(const std::vector<int>& x, bool freed);

// What each thread of a block of 40x3x2 sees: a bit for each number that is as CUDA says.
std::vector<int> coordinates_seen();

// What each lane gets from a whole warp, and from its half of one.
std::vector<unsigned> shuffled();

// bf16 bits of each number.
std::vector<unsigned> rounded_to_bf16(const std::vector<float>& x);

// One of the launches that are wrong, each in its own way.
void launch_wrong(const std::string& what);

}  // namespace convoy::simt
