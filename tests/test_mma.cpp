// The tensor core instructions, under the emulator or on a GPU, each against its definition in the
// PTX manual.
#include <array>
#include <bit>
#include <numeric>

#include "src/base/bf16.h"
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

static std::vector<uint16_t> counted(size_t n) {  // 1, 2, …: a 0 was outside of the image
    std::vector<uint16_t> x(n);
    std::iota(x.begin(), x.end(), uint16_t(1));
    return x;
}
// sizes C, W, H, N; lower, upper, step; pixels; then c, w, h, n, s, r of the copy
static const BoxCase kBoxes[] = {
    {{64, 6, 5, 3}, {-1, -1}, {-1, -1}, {1, 1}, 64, 0, -1, -1, 0, 0, 0},  // a window of 3x3, padded
    {{64, 6, 5, 3}, {-1, -1}, {-1, -1}, {1, 1}, 64, 0, 3, 1, 1, 2, 1},    // beyond the last image
    {{128, 7, 9, 2}, {-1, -1}, {-1, -1}, {2, 2}, 16, 64, 1, 3, 0, 1, 2},  // with a stride
    {{72, 3, 4, 2}, {0, 0}, {0, 0}, {1, 1}, 24, 64, 0, 0, 0, 0, 0},       // 8 channels of 64
    {{64, 9, 8, 2}, {-3, -2}, {-4, -3}, {3, 2}, 8, 0, 3, 2, 1, 4, 5},     // not square in anything
    {{64, 2, 2, 1}, {-7, -9}, {2, 3}, {1, 1}, 32, 0, -7, -9, 0, 3, 8},    // mostly padding
    {{64, 40, 1, 1}, {0, 0}, {0, 0}, {1, 1}, 16, 0, 32, 0, 0, 0, 0},      // the end of a matrix
    {{8, 70000, 1, 1}, {0, 0}, {0, 0}, {1, 1}, 64, 0, 69990, 0, 0, 0, 0},  // of a very long one
    {{64, 9, 7, 2}, {2, 1}, {0, 0}, {1, 1}, 16, 0, 2, 1, 0, 0, 0},         // not its first pixels
    {{64, 5, 5, 1}, {0, 0}, {0, 0}, {1, 1}, 16, 64, 0, 0, 0, 0, 0},        // behind its channels
};

TEST_CASE("TMA brings the pixels that a window sees, and turns the chunks of each") {
    if (!kernels().has_groups()) {
        MESSAGE("left out: this GPU has no TMA");
        return;
    }
    for (const BoxCase& box : kBoxes) {
        const auto [C, W, H, N] = box.sizes;
        CAPTURE(cat(C, " channels, ", W, " x ", H, ", from ", box.w, ", ", box.h));
        const std::vector<uint16_t> image = counted(size_t(C) * W * H * N);
        const std::vector<uint16_t> got = kernels().copied_box(image, box);
        // The places of the window in all images, in order; the box begins at one of them.
        std::vector<std::array<int, 3>> places;
        size_t first = 0;
        for (int n = 0; n < N + 64; ++n)
            for (int h = box.lower[1]; h <= H - 1 + box.upper[1]; h += box.step[1])
                for (int w = box.lower[0]; w <= W - 1 + box.upper[0]; w += box.step[0]) {
                    if (w == box.w && h == box.h && n == box.n) first = places.size();
                    places.push_back({w, h, n});
                }
        for (int i = 0; i < box.pixels; ++i)
            for (int c = 0; c < 64; ++c) {
                const auto [w, h, n] = places[first + i];
                const int column = w + box.s, row = h + box.r, channel = box.c + c;
                const bool inside =
                    column >= 0 && column < W && row >= 0 && row < H && n < N && channel < C;
                const int at = i * 64 + (c / 8 ^ i % 8) * 8 + c % 8;
                CHECK(got[at] ==
                      (inside ? image[((size_t(n) * H + row) * W + column) * C + channel] : 0));
            }
    }
}

TEST_CASE("wgmma multiplies operands stored by rows or by depths, as TMA leaves them") {
    if (!kernels().has_groups()) {
        MESSAGE("left out: this GPU has no TMA");
        return;
    }
    constexpr int kDepth = 320;
    const auto bits = [](std::vector<float> x) {
        std::vector<uint16_t> out;
        for (float v : x) out.push_back(to_bf16(v));
        return out;
    };
    const std::vector<uint16_t> a = bits(random_floats(128 * kDepth, 1)),
                                b = bits(random_floats(128 * kDepth, 2));
    std::vector<double> want(128 * 128);
    const auto product = [&](bool fast_a, bool fast_b) {
        for (int i = 0; i < 128; ++i)
            for (int j = 0; j < 128; ++j) {
                double sum = 0;
                for (int l = 0; l < kDepth; ++l)
                    sum += double(from_bf16(a[fast_a ? i * kDepth + l : l * 128 + i])) *
                           from_bf16(b[fast_b ? j * kDepth + l : l * 128 + j]);
                want[i * 128 + j] = sum;
            }
    };
    for (bool fast_a : {true, false})
        for (bool fast_b : {true, false}) {
            CAPTURE(cat(fast_a, " ", fast_b));
            product(fast_a, fast_b);
            CHECK_CLOSE(kernels().group_product(fast_a, fast_b, a, b, ""), want,
                        sum_tolerance(kDepth));
        }
    if (on_gpu()) return;  // mistakes there may hang
    product(true, true);
    const auto is_wrong = [&](const char* mistake) {
        const std::vector<float> got = kernels().group_product(true, true, a, b, mistake);
        for (size_t i = 0; i < got.size(); ++i)
            if (!(std::abs(got[i] - want[i]) < 1e-3)) return true;
        return false;
    };
    CHECK_FAILS(is_wrong("no wait"), "mbarrier: an arrival that it does not expect");
    CHECK_FAILS(is_wrong("wrong phase"), "mbarrier");
    CHECK_FAILS(is_wrong("no end"),
                "wgmma: a fifth stage begins before the wait for the first one");
    CHECK_FAILS(is_wrong("early"), "mbarrier");
}

TEST_CASE("simt: mistakes with mbarrier and TMA are noticed") {
    const auto copied = [&](const char* mistake) {
        BoxCase box = kBoxes[0];
        box.mistake = mistake;
        return simt::mma_kernels().copied_box(counted(64 * 6 * 5 * 3), box);
    };
    const std::vector<uint16_t> right = copied("");
    CHECK_FAILS(copied("no end"), "ended before a copy of its block arrived");
    CHECK_FAILS(copied("no expect"), "ended before a copy of its block arrived");
    CHECK_FAILS(copied("no init"), "mbarrier: an arrival that it does not expect");
    CHECK_FAILS(copied("few bytes"), "waits in mbarrier.try_wait");
    CHECK_FAILS(copied("many bytes"), "waits in mbarrier.try_wait");
    CHECK_FAILS(copied("two arrivals"), "mbarrier: an arrival that it does not expect");
    CHECK_FAILS(copied("target"), "TMA: the target is not aligned to 1024");
    CHECK_FAILS(copied("tap"), "TMA: a tap outside of 0 ... 255");
    CHECK(copied("no wait") != right);
    CHECK(copied("wrong phase") != right);
}

TEST_SUITE_END();

}  // namespace convoy
