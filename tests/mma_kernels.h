// mma_kernels.h — one warp runs one tensor core instruction, to test its layout.
#pragma once

#include <cstdint>
#include <vector>

namespace convoy {

// A copy of a box, as CopyBarrier::copy takes it. Mistakes are for the emulator alone.
struct BoxCase {
    int sizes[4], lower[2], upper[2], step[2], pixels;  // image_map of kernels/cuda/mma.cuh
    int c, w, h, n, s, r;
    const char* mistake = "";
};

// simt: on the emulator; cuda: on GPU 0, null in a build without nvcc.
struct MmaKernels {
    // d + a·b by one mma: a 16×depth, b depth×8, d 16×8; in tf32 the depth is 8, in bf16 16.
    std::vector<float> (*one_mma)(bool bf16, const std::vector<float>& a,
                                  const std::vector<float>& b, const std::vector<float>& d);

    // The four words that each lane loads from 4 matrices of 8×8 16-bit numbers.
    std::vector<uint32_t> (*one_load)(bool transposed, const std::vector<uint16_t>& matrices);

    // 32 threads copy 3 × 16 bytes each, in groups of 1 and 2; the third source does not exist.
    // Returns [read][thread][12]: what a thread reads after the requests, after a wait that leaves
    // one group pending, after a wait for all.
    std::vector<float> (*copies_seen)(const std::vector<float>& x);

    // cp.async of 16 bytes from an address aligned to 4: the emulator throws Error.
    void (*copy_misaligned)();

    // Whether the device has what follows: CopyBarrier and GroupProducts.
    bool (*has_groups)();

    // The numbers that a copy leaves in shared memory, in the order of their addresses.
    std::vector<uint16_t> (*copied_box)(const std::vector<uint16_t>& image, const BoxCase& box);

    // a·b by groups of 4 warps, after copies: a 128×depth, b 128×depth, out 128×128; each is stored
    // by rows or, if not depth_fast, by depths. The depth is a multiple of 64.
    std::vector<float> (*group_product)(bool depth_fast_a, bool depth_fast_b,
                                        const std::vector<uint16_t>& a,
                                        const std::vector<uint16_t>& b, const char* mistake);
};
namespace simt {
MmaKernels mma_kernels();
}  // namespace simt
namespace cuda {
[[gnu::weak]] MmaKernels mma_kernels();
}  // namespace cuda

}  // namespace convoy
