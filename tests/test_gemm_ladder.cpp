// Every rung of tests/lab/gemm_ladder.cu on the CUDA emulator or a GPU, against the formula in
// double.
#include "kernels/simt/emulator.h"
#include "tests/device.h"
#include "tests/lab/gemm_ladder.h"
#include "tests/reference.h"
#include "tests/support.h"

namespace convoy {

TEST_SUITE_BEGIN("device");

namespace {

// Products of rounded numbers are exact, so what is left is the rounding of sums.
std::vector<double> formula(const GemmSize& s, std::vector<float> a, std::vector<float> b,
                            Precision precision) {
    if (precision != Precision::kFp32)
        for (auto* x : {&a, &b})
            for (float& v : *x) v = reference::rounded(v, precision);
    std::vector<double> c(size_t(s.I) * s.J);
    for (int i = 0; i < s.I; ++i)
        for (int l = 0; l < s.L; ++l)
            for (int j = 0; j < s.J; ++j)
                c[size_t(i) * s.J + j] += double(a[i * s.L + l]) * b[size_t(l) * s.J + j];
    return c;
}

}  // namespace

TEST_CASE("every rung of the ladder of products gives the formula in double, at awkward sizes") {
    uint64_t seed = 0;  // each order of threads finds another missing barrier
    for (const GemmSize size :
         {GemmSize{1, 1, 1}, GemmSize{133, 141, 45}, GemmSize{8, 132, 20}, GemmSize{70, 65, 100},
          GemmSize{65, 70, 164}, GemmSize{133, 136, 72}, GemmSize{300, 512, 264}}) {
        simt::set_seed(++seed);
        CAPTURE(cat(size.I, " x ", size.J, " x ", size.L));
        const auto a = random_floats(size_t(size.I) * size.L, 1);
        const auto b = random_floats(size_t(size.L) * size.J, 2);
        int rungs = 0;
        const auto climb = on_gpu() ? cuda::climb_gemm_ladder : simt::climb_gemm_ladder;
        std::string why_no_cublas;
        climb(
            size, a, b,
            [&](const RungResult& rung) {
                if (rung.name == "cuBLAS") return;  // it may cut digits where we round
                check_close(rung.c, formula(size, a, b, rung.precision), sum_tolerance(size.L),
                            cat(rung.name, " in precision ", int(rung.precision)));
                ++rungs;
            },
            &why_no_cublas);
        const bool rows_of_16_bytes = size.J % 8 == 0 && size.L % 8 == 0;
        if (!on_gpu()) CHECK(rungs == 3 + 2 + 3 + (rows_of_16_bytes ? 5 : 0));
    }
}

TEST_SUITE_END();

}  // namespace convoy
