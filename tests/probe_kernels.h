// probe_kernels.h — the instructions of compute capability 9.0 that no kernel uses yet: wgmma,
// copies by tensor maps (TMA) of tiles and of patches (im2col), and the barriers they complete.
#pragma once

#include <string>
#include <vector>

namespace convoy::cuda {

// What one instruction left, and what it leaves by the PTX manual.
struct Probe {
    std::string name;
    std::vector<int> got, want;
};

// Null in a build without nvcc; none where the GPU is not of 9.0 or the build lacks code for 9.0a.
[[gnu::weak]] std::vector<Probe> run_probes();

// Multiply-adds of wgmma on random bits in shared memory, bf16: the limit of a kernel that used it,
// next to measure_peak_gflops() for mma.sync. 0 where run_probes() has none.
[[gnu::weak]] double wgmma_peak_gflops();

}  // namespace convoy::cuda
