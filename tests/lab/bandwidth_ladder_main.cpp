// bandwidth_ladder_main.cpp — runs the ladder of bandwidth_ladder.cu on GPU 0, or on the emulator.
//
//   bandwidth_ladder [N]     images of 56 × 56 × 256 numbers: 128 on a GPU, so that no cache holds
//                            a tensor; 1 on the emulator, of 7 × 7
#include <cstdio>

#include "tests/lab/bandwidth_ladder.h"

namespace convoy {

namespace {

// The largest error of dx in three channels.
double worst_error(const NormGradient& problem, const std::vector<float>& dx) {
    const int C = problem.shape.C;
    double worst = 0;
    for (const int c : {0, C / 2 + 1, C - 1}) {
        const std::vector<double> want = problem.in_double(c).dx;
        for (size_t row = 0; row < want.size(); ++row) {
            const double error = std::abs(want[row] - dx[row * C + c]);
            if (!(error <= worst)) worst = error;  // a NaN stays
        }
    }
    return worst;
}

int run(int argc, char** argv) {
    std::string why_no_gpu;
    const bool gpu = count_gpus(&why_no_gpu) > 0;
    int images = gpu ? 128 : 1;
    char rest;
    if (argc > 2 || (argc == 2 && std::sscanf(argv[1], "%4d%c", &images, &rest) != 1) ||
        images <= 0)
        fail("one argument at most, the number of images: 1 to 9999");
    const int side = gpu ? 56 : 7;
    const NormGradient problem({images, side, side, 256}, {Activation::kRelu});

    if (!gpu) fmt::print("no GPU ({}): the ladder on the CUDA emulator, not timed\n", why_no_gpu);
    fmt::print("the gradient of batch norm with relu, {}\n", problem.shape.text());
    fmt::print("{:<14} {:<5} {:>10} {:>12}\n", "rung", "", "GB/s", "worst error");
    const auto visit = [&](const BandwidthRung& r) {
        const double error = r.name == "copy" ? 0 : worst_error(problem, r.dx);
        fmt::print("{:<14} {:<5} {:10.0f} {:12.2g}\n", r.name, name_of(r.type),
                   gpu ? r.bytes / r.seconds / 1e9 : 0, error);
    };
    (gpu ? cuda::climb_bandwidth_ladder : simt::climb_bandwidth_ladder)(problem, visit);
    return 0;
}

}  // namespace

}  // namespace convoy

int main(int argc, char** argv) {
    try {
        return convoy::run(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 1;
    }
}
