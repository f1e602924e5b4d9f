// Every rung of tests/lab/bandwidth_ladder.cu on the CUDA emulator or a GPU, against the formula in
// double.
#include "kernels/simt/emulator.h"
#include "tests/check_ops.h"
#include "tests/device.h"
#include "tests/lab/bandwidth_ladder.h"

namespace convoy {

TEST_SUITE_BEGIN("device");

namespace {

// How many rungs there are for tensors of this type, with "production" and without "copy".
int rungs_for(const NormGradient& problem, Type type) {
    if (problem.shape.C * bytes_of(type) % 16 != 0) return 2;
    return problem.act.kind == Activation::kRelu ? 7 : 3;
}

}  // namespace

TEST_CASE("every rung of the ladder of gradients gives the formula in double, at awkward sizes") {
    struct Case {
        Shape shape;
        Activation::Kind kind = Activation::kRelu;
    };
    uint64_t seed = 0;  // each order of threads finds another missing barrier
    for (const auto& [shape, kind] :
         {Case{{1, 1, 1, 1}}, Case{{3, 9, 5, 33}}, Case{{5, 3, 3, 8}}, Case{{2, 7, 5, 20}},
          Case{{1, 2, 2, 264}},                           // several blocks of channels
          Case{{4, 20, 21, 40}}, Case{{2, 13, 11, 136}},  // several slabs
          Case{{2, 5, 7, 16}, Activation::kNone}, Case{{2, 5, 7, 16}, Activation::kRelu6},
          Case{{2, 5, 7, 16}, Activation::kSilu}, Case{{2, 5, 7, 16}, Activation::kHardSwish}}) {
        simt::set_seed(++seed);
        CAPTURE(shape.text(), int(kind));
        const NormGradient problem(shape, {kind});
        const size_t C = size_t(shape.C), rows = shape.elems() / C;
        std::vector<double> dx(shape.elems()), dgamma(C), dbeta(C);
        for (size_t c = 0; c < C; ++c) {
            const auto want = problem.in_double(int(c));
            for (size_t row = 0; row < rows; ++row) dx[row * C + c] = want.dx[row];
            dgamma[c] = want.dgamma, dbeta[c] = want.dbeta;
        }
        int rungs[2] = {};  // of floats, of bf16
        const auto climb = on_gpu() ? cuda::climb_bandwidth_ladder : simt::climb_bandwidth_ladder;
        climb(problem, [&](const BandwidthRung& rung) {
            if (rung.name == "copy") return check_close(rung.dx, problem.x, 0, "copy");
            const bool is_bf16 = rung.type == Type::kBfloat16;
            const std::string what = cat(rung.name, " of ", name_of(rung.type));
            // |x̂| < 3, so with a single row |dx| < 2·3². Terms as in test_batch_norm.cpp.
            check_stored(rung.dx, dx, sum_tolerance(32, 18),
                         is_bf16 ? Precision::kBf16 : Precision::kFp32, what);
            const double terms = 130 + double(rows) / 128;
            check_close(rung.dgamma, dgamma, sum_tolerance(terms, 3), what + ", dgamma");
            check_close(rung.dbeta, dbeta, sum_tolerance(terms), what + ", dbeta");
            ++rungs[is_bf16];
        });
        CHECK(rungs[0] == rungs_for(problem, Type::kFloat32));
        CHECK(rungs[1] == rungs_for(problem, Type::kBfloat16));
    }
}

TEST_SUITE_END();

}  // namespace convoy
