// gemm_ladder_main.cpp — runs the ladder of gemm_ladder.cu on GPU 0, or on the emulator.
//
//   gemm_ladder [SIZE]     SIZE × SIZE matrices: 4096 on a GPU, 128 on the emulator
#include <cmath>
#include <cstdio>

#include "src/base/random.h"
#include "tests/lab/gemm_ladder.h"

namespace convoy {

namespace {

const char* kNames[] = {"fp32", "tf32", "bf16"};

std::vector<float> random_floats(size_t n, uint64_t seed) {
    Random random(seed, 0, 0, kTest);
    std::vector<float> x(n);
    for (float& v : x) v = random.uniform(-1, 1);
    return x;
}

// The largest error of 200 numbers of c, spread over all of it.
double worst_error(const GemmSize& s, const std::vector<float>& a, const std::vector<float>& b,
                   const std::vector<float>& c) {
    double worst = 0;
    for (size_t n = 0; n < 200; ++n) {
        const size_t at = n * 2654435761u % c.size(), i = at / s.J, j = at % s.J;
        double sum = 0;
        for (int l = 0; l < s.L; ++l) sum += double(a[i * s.L + l]) * b[size_t(l) * s.J + j];
        const double error = std::abs(sum - c[at]);
        if (!(error <= worst)) worst = error;  // a NaN stays
    }
    return worst;
}

int run(int argc, char** argv) {
    std::string why_no_gpu, why_no_cublas;
    const bool gpu = count_gpus(&why_no_gpu) > 0;
    int side = gpu ? 4096 : 128;
    char rest;
    if (argc > 2 || (argc == 2 && std::sscanf(argv[1], "%5d%c", &side, &rest) != 1) || side <= 0)
        fail("one argument at most, the size of the matrices: 1 to 99999");
    const GemmSize size{side, side, side};
    const auto a = random_floats(size_t(side) * side, 1), b = random_floats(a.size(), 2);

    if (!gpu) fmt::print("no GPU ({}): the ladder on the CUDA emulator, not timed\n", why_no_gpu);
    fmt::print("c = a·b, {} x {} x {}\n", side, side, side);
    fmt::print("{:<14} {:<5} {:>10} {:>12}\n", "rung", "", "TFLOP/s", "worst error");
    const auto visit = [&](const RungResult& r) {
        fmt::print("{:<14} {:<5} {:10.2f} {:12.2g}\n", r.name, kNames[int(r.precision)],
                   gpu ? size.flops() / r.seconds / 1e12 : 0, worst_error(size, a, b, r.c));
    };
    (gpu ? cuda::climb_gemm_ladder : simt::climb_gemm_ladder)(size, a, b, visit, &why_no_cublas);
    if (!why_no_cublas.empty()) fmt::print("{}\n", why_no_cublas);
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
