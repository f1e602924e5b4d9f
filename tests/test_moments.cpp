// Statistics of batch norm taken by the convolution that makes its input: against the formula in
// double, of the very numbers that came out.
#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "kernels/simt/emulator.h"
#include "tests/device.h"
#include "tests/mma_kernels.h"
#include "tests/reference.h"
#include "tests/through_device.h"

namespace convoy {

TEST_SUITE_BEGIN("device");

namespace {

constexpr float kEps = 1e-5f;

struct Case {
    Shape x;
    int K;
    Window window;
    std::vector<int> bounds;
};
// Tiles are 128×64 and 128×128.
const Case kCases[] = {
    {{1, 1, 1, 1}, 1, Window::square(1), {0, 1}},
    {{5, 3, 11, 4}, 8, Window::square(1), {0, 1, 1, 3, 5, 5}},  // ends inside of tiles, empty ones
    {{9, 4, 4, 3}, 5, Window::square(3, 2, 1), {0, 1, 2, 3, 4, 6, 7, 8, 9}},  // many in a tile
    {{3, 16, 8, 8}, 68, Window::square(1), {0, 1, 3}},       // ends where tiles do; columns
    {{2, 9, 15, 36}, 132, Window::square(1), {0, 1, 2}},     // wide tiles, and three
    {{2, 6, 7, 68}, 6, Window::square(3, 1, 1), {0, 1, 2}},  // the depth in parts
    {{2, 35, 31, 3}, 10, Window::square(7, 2, 3), {0, 2}},   // a first layer
    {{2, 9, 15, 64}, 256, Window::square(1), {0, 1, 2}},     // boxes of TMA, and wide tiles
    {{3, 7, 5, 64}, 72, Window::square(3, 1, 1), {0, 1, 1, 3}},
};

struct Problem {
    explicit Problem(const Case& c)
        : window(c.window),
          xs(c.x),
          ws{c.K, c.window.size_h, c.window.size_w, c.x.C},
          ys(reference::conv_shape(xs, ws, c.window)),
          bounds(c.bounds),
          x(random_floats(xs.elems(), 1)),
          w(random_floats(ws.elems(), 2)),
          b(random_floats(size_t(c.K), 3)),
          y(ys.elems()),
          mean_rstd(2 * (bounds.size() - 1) * size_t(c.K)),
          sums(2 * size_t(c.K), 0.5f) {}

    void run(Backend& backend, bool relu) {
        const Moments of_y{bounds, kEps, mean_rstd.data(), sums.data()};
        backend.conv2d({x.data(), xs}, {w.data(), ws}, b.data(), window, relu, {y.data(), ys},
                       &of_y);
    }
    // Relative to what is right: mean_error of means of size 1, rstd_error of rstds.
    void check(double rstd_error, double mean_error) {
        const std::vector<float> one(size_t(ys.C), 1), zero(size_t(ys.C), 0);
        const auto want = reference::batch_norm({ys, std::vector<float>(y)}, bounds, one, zero, {},
                                                {Activation::kNone}, kEps);
        const size_t C = size_t(ys.C);
        for (size_t g = 0; g + 1 < bounds.size(); ++g) {
            if (bounds[g] == bounds[g + 1]) continue;
            std::vector<double> mean(C), rstd(C), all_right(C, 1);
            for (size_t c = 0; c < C; ++c) {
                mean[c] = want.mean[g * C + c];
                rstd[c] = mean_rstd.data()[(2 * g + 1) * C + c] / want.rstd[g * C + c];
            }
            CHECK_CLOSE(mean_rstd.span().subspan(2 * g * C, C), mean, mean_error);
            CHECK_CLOSE(rstd, all_right, rstd_error);
        }
        std::vector<double> want_sums = want.sums;
        double largest = 1;
        for (double& v : want_sums) v += 0.5, largest = std::max(largest, std::abs(v));
        CHECK_CLOSE(sums.span(), want_sums, sum_tolerance(16, largest));
    }

    Window window;
    Shape xs, ws, ys;
    std::vector<int> bounds;
    std::vector<float> x, w, b;
    Guarded y, mean_rstd, sums;
};

void check_cases(Backend& backend) {
    bool relu = false;
    for (const Case& c : kCases) {
        Problem p(c), without(c);
        CAPTURE(cat("x ", c.x.text(), " to ", c.K));
        relu = !relu;
        p.run(backend, relu);
        backend.conv2d({p.x.data(), p.xs}, {p.w.data(), p.ws}, p.b.data(), p.window, relu,
                       {without.y.data(), p.ys});
        CHECK(std::vector<float>(p.y) == std::vector<float>(without.y));
        // Values of up to 30, in sums of which a thread adds no more than 32 before others do.
        p.check(sum_tolerance(32), sum_tolerance(32));
    }
}

}  // namespace

TEST_CASE("conv2d leaves the moments of what it makes, in every precision") {
    SUBCASE("fp32") { check_cases(*each_backend(2)); }
    SUBCASE("tf32") { check_cases(*each_backend(2, Precision::kTf32)); }
    SUBCASE("bf16") {
        for (const char* tma : {"off", "on", "wide"}) {
            if (std::string(tma) != "off" && on_gpu() && !cuda::mma_kernels().has_groups())
                continue;
            setenv("CONVOY_TEST_TMA", tma, 1);
            check_cases(*each_backend(2, Precision::kBf16));
        }
        unsetenv("CONVOY_TEST_TMA");
    }
}

// y = 1000 + x, exactly: x in steps of 2⁻¹⁴, which a float has at 1000, of 8 bits each. What a mean
// taken in float is off by, 2⁻¹⁵ at best, would show in rstd: (2⁻¹⁵/σ)² is 10⁻⁵. (A bf16 has no
// room for both.)
TEST_CASE("moments of a convolution keep their digits with a large mean and a tiny variance") {
    const auto check = [](std::unique_ptr<Backend> backend) {
        Problem p({{4, 11, 13, 4}, 5, Window::square(1), {0, 1, 4}});
        for (float& v : p.x) v = std::round(v * 256) / 16384;
        for (size_t i = 0; i < p.w.size(); ++i) p.w[i] = i % 4 == i / 4 % 4;
        std::fill(p.b.begin(), p.b.end(), 1000.0f);
        p.run(*backend, false);
        REQUIRE(p.y.data()[4] == 1000 + p.x[0]);
        p.check(1e-6, 0x1p-15);
    };
    SUBCASE("fp32") { check(each_backend(2)); }
    SUBCASE("tf32") { check(each_backend(2, Precision::kTf32)); }
}

// More than 1024 tiles, whose sums are then merged before they are added.
TEST_CASE("moments of a convolution with very many rows") {
    auto backend = each_backend(2);
    Problem p({{3, 149, 149, 1}, 3, Window::square(1), {0, 1, 3}});
    for (float& v : p.b) v += 100;
    p.run(*backend, false);
    p.check(sum_tolerance(32), sum_tolerance(1, 128));
}

// Merged strips that meet two groups, by the hundred: a merge that runs ahead of its readers shows.
TEST_CASE("moments of a convolution with very many rows in very many groups") {
    auto backend = each_backend(2);
    std::vector<int> bounds(302);
    std::iota(bounds.begin(), bounds.end(), 0);
    Problem p({{301, 15, 15, 2}, 3, Window::square(1), bounds});
    p.run(*backend, false);
    p.check(sum_tolerance(32), sum_tolerance(32));
}

// A missing barrier, or a copy into a stage that is still read, shows as another result or a NaN.
TEST_CASE("a convolution and its moments have the same bits in whatever order threads run") {
    for (const Case& c : {Case{{5, 9, 7, 8}, 68, Window::square(1), {0, 1, 2, 5}},
                          Case{{1, 9, 9, 40}, 24, Window::square(3, 1, 1), {0, 1}}})
        for (Precision precision : {Precision::kFp32, Precision::kTf32, Precision::kBf16}) {
            std::vector<float> first;
            for (uint64_t seed : {1, 2, 3}) {
                simt::set_seed(seed);
                ThroughDevice backend(
                    make_backend(kernel_device(), {.threads = 2, .precision = precision}));
                Problem p(c);
                p.run(backend, false);
                std::vector<float> all = p.mean_rstd;
                for (Guarded* more : {&p.sums, &p.y})
                    all.insert(all.end(), more->span().begin(), more->span().end());
                if (first.empty()) first = all;
                CHECK(all == first);
                CHECK(std::isfinite(all[0] + all.back()));
            }
        }
}

TEST_CASE("moments of no images leave the sums; groups that do not fit are refused") {
    auto backend = each_backend();
    Problem none({{0, 3, 3, 2}, 3, Window::square(3), {0, 0}});
    none.run(*backend, false);
    CHECK(std::vector<float>(none.sums) == std::vector<float>(6, 0.5f));
    Problem wrong({{2, 3, 3, 2}, 3, Window::square(3), {0, 1}});
    CHECK_FAILS(wrong.run(*backend, false), "x has 2 images, the bounds of the groups end at 1");
}

TEST_SUITE_END();

}  // namespace convoy
