// The tensor core instructions, under the emulator or on a GPU, each against its definition in the
// PTX manual.
#include <bit>

#include "tests/device.h"
#include "tests/mma_kernels.h"
#include "tests/reference.h"
#include "tests/support.h"

namespace convoy {

TEST_SUITE_BEGIN("device");

static MmaKernels kernels() { return on_gpu() ? cuda::mma_kernels() : simt::mma_kernels(); }

TEST_CASE("mma gives each lane the sums of its rows and columns, in tf32 and in bf16") {
    for (bool bf16 : {false, true}) {
        CAPTURE(bf16);
        const int depth = bf16 ? 16 : 8;
        const std::vector<float> a = random_floats(16 * depth, 1), b = random_floats(depth * 8, 2);
        const std::vector<float> d = random_floats(16 * 8, 3);
        const Precision precision = bf16 ? Precision::kBf16 : Precision::kTf32;
        std::vector<double> want(d.begin(), d.end());
        for (int row = 0; row < 16; ++row)
            for (int column = 0; column < 8; ++column)
                for (int l = 0; l < depth; ++l)
                    want[row * 8 + column] +=
                        double(reference::rounded(a[row * depth + l], precision)) *
                        reference::rounded(b[l * 8 + column], precision);
        CHECK_CLOSE(kernels().one_mma(bf16, a, b, d), want, sum_tolerance(depth + 1));
    }
}

TEST_CASE("a NaN or an infinity in an operand of mma reaches the sums of its row") {
    for (bool bf16 : {false, true})
        for (float bad : {NAN, std::bit_cast<float>(0x7FFFFFFFu), INFINITY}) {
            const int depth = bf16 ? 16 : 8;
            std::vector<float> a(16 * depth, 1.0f), b(depth * 8, 1.0f), d(128, 0.0f);
            a[3 * depth + 2] = bad;
            const std::vector<float> got = kernels().one_mma(bf16, a, b, d);
            for (int i = 0; i < 128; ++i) CHECK(std::isfinite(got[i]) == (i / 8 != 3));
        }
}

TEST_CASE("ldmatrix hands out four matrices by rows, and transposed by columns") {
    std::vector<uint16_t> matrices(4 * 8 * 8);
    for (size_t i = 0; i < matrices.size(); ++i) matrices[i] = uint16_t(i * 257 + 1);
    for (bool transposed : {false, true}) {
        const std::vector<uint32_t> words = kernels().one_load(transposed, matrices);
        for (int lane = 0; lane < 32; ++lane)
            for (int m = 0; m < 4; ++m)
                for (int half = 0; half < 2; ++half) {
                    const int row = lane / 4, column = lane % 4 * 2 + half;
                    const int at = transposed ? column * 8 + row : row * 8 + column;
                    CHECK((words[lane * 4 + m] >> 16 * half & 0xFFFF) == matrices[m * 64 + at]);
                }
    }
}

TEST_CASE("cp.async: nothing is there before the wait for its group, and what is absent is 0") {
    const std::vector<float> x = random_floats(2 * 32 * 4, 1);
    const std::vector<float> seen = kernels().copies_seen(x);
    for (int read = 0; read < 3; ++read)
        for (int thread = 0; thread < 32; ++thread)
            for (int i = 0; i < 12; ++i) {
                const float got = seen[(read * 32 + thread) * 12 + i];
                const int group = i < 4 ? 0 : 1;
                if (read <= group)  // a GPU may have copied by then
                    CHECK((std::isnan(got) || on_gpu()));
                else
                    CHECK(got == (i < 8 ? x[(i / 4 * 32 + thread) * 4 + i % 4] : 0.0f));
            }
}

TEST_CASE("cp.async refuses an address that is not aligned to its bytes") {
    if (on_gpu()) return;  // an error there that ends the work of the whole process
    CHECK_FAILS(kernels().copy_misaligned(), "cp.async of 16 bytes: an address is not aligned");
}

TEST_SUITE_END();

}  // namespace convoy
