// gemm_ladder_main.cpp — runs the ladder of gemm_ladder.cu on GPU 0, or on the emulator.
//
//   gemm_ladder [SIZE]     SIZE × SIZE matrices: 4096 on a GPU, 128 on the emulator
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "src/base/random.h"
#include "tools/gemm_ladder.h"

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
    std::string why_no_gpu = "built without CUDA", why_no_cublas;
    bool gpu = false;
    if (cuda::has_gpu) gpu = cuda::has_gpu(&why_no_gpu);
    const std::string word = argc > 1 ? argv[1] : gpu ? "4096" : "128";
    if (argc > 2 || word.empty() || word.size() > 5 ||
        word.find_first_not_of("0123456789") != std::string::npos || std::stoi(word) == 0)
        fail("one argument at most, the size of the matrices: 1 to 99999");
    const int side = std::stoi(word);
    const GemmSize size{side, side, side};
    const auto a = random_floats(size_t(side) * side, 1), b = random_floats(a.size(), 2);

    struct Line {
        std::string name;
        Precision precision;
        double seconds, error;
    };
    std::vector<Line> lines;
    const auto visit = [&](const RungResult& r) {
        lines.push_back({r.name, r.precision, r.seconds, worst_error(size, a, b, r.c)});
    };
    if (gpu) cuda::climb_gemm_ladder(size, a, b, visit, &why_no_cublas);
    if (!gpu) {
        std::printf("no GPU (%s): the ladder on the CUDA emulator, not timed\n",
                    why_no_gpu.c_str());
        simt::climb_gemm_ladder(size, a, b, visit);
    }

    std::map<Precision, double> yardstick;
    for (const Line& line : lines) {
        double& best = yardstick[line.precision];
        const bool counts = why_no_cublas.empty() ? line.name == "cuBLAS" : true;
        if (gpu && counts && (best == 0 || line.seconds < best)) best = line.seconds;
    }
    const char* against = why_no_cublas.empty() ? "cuBLAS" : "best";
    if (!why_no_cublas.empty()) std::printf("%s\n", why_no_cublas.c_str());
    std::printf("c = a·b, %d x %d x %d\n", side, side, side);
    std::printf("%-14s %-5s %10s %10s %12s\n", "rung", "", "TFLOP/s", cat("% of ", against).c_str(),
                "worst error");
    for (const Line& line : lines) {
        std::printf("%-14s %-5s ", line.name.c_str(), kNames[int(line.precision)]);
        if (gpu)
            std::printf("%10.2f %10.1f", size.flops() / line.seconds / 1e12,
                        100 * yardstick[line.precision] / line.seconds);
        else
            std::printf("%10s %10s", "-", "-");
        std::printf(" %12.2g\n", line.error);
    }
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
