// Convolutions and linear layers in tf32 and bf16, on tensor cores and on the CPU.
#include <cstdlib>

#include "kernels/simt/mma.h"
#include "tests/check_ops.h"
#include "tests/mma_kernels.h"

namespace convoy {

TEST_SUITE_BEGIN("device");

TEST_CASE("conv2d and its gradients in tf32 are the formula of numbers with 10 bits") {
    auto backend = each_backend(2, Precision::kTf32);
    for (const ConvCase& c : kConvCases) check_conv(*backend, Precision::kTf32, c);
    check_linear_in(*backend, Precision::kTf32, {5, 2, 3, 50}, 67);
}

TEST_CASE("conv2d and its gradients in bf16 are the formula of numbers with 7 bits") {
    auto backend = each_direct(2, Precision::kBf16);
    for (const ConvCase& c : kConvCases) check_conv(*backend, Precision::kBf16, c);
    for (const ConvCase& c : kDepthwiseCases) check_conv(*backend, Precision::kBf16, c);
    check_linear_in(*backend, Precision::kBf16, {5, 2, 3, 50}, 67);
}

// Channels and filters of whole boxes, which TMA copies, and some that it leaves to other kernels.
static const ConvCase kBoxCases[] = {
    {{2, 6, 5, 64}, 64, Window::square(3, 1, 1)},
    {{3, 7, 7, 64}, 136, Window::square(1)},          // more filters than whole tiles
    {{2, 9, 8, 128}, 64, Window::square(3, 2, 1)},    // four kinds of pixels in grad_x
    {{1, 9, 13, 192}, 72, Window::square(1, 2, 0)},   // the end of a tile is beyond the last tap
    {{2, 5, 12, 64}, 192, Window{1, 5, 1, 3, 0, 2}},  // rectangular
    {{1, 13, 12, 64}, 64, Window{3, 2, 1, 1, 4, 3, 0, 0, 4, 3}},  // dilated
    {{2, 2, 3, 64}, 128, Window{3, 2, 2, 1, 7, 6}},               // patches of padding alone
    {{1, 20, 21, 128},
     128,
     Window::square(3, 1, 1)},                     // several parts, and more than a ring of stages
    {{1, 12, 11, 256}, 256, Window::square(1)},    // wide tiles
    {{5, 4, 4, 40}, 24, Window::square(1)},        // one tap, less than a box
    {{1, 6, 6, 96}, 64, Window::square(3, 1, 1)},  // a box and a half
};

TEST_CASE("convolutions by TMA and wgmma are the formula of numbers with 7 bits") {
    if (on_gpu() && !cuda::mma_kernels().has_groups()) {
        MESSAGE("left out: this GPU has no TMA");
        return;
    }
    for (const char* tiles : {"on", "wide"}) {
        setenv("CONVOY_TEST_TMA", tiles, 1);
        auto backend = each_direct(2, Precision::kBf16);
        unsetenv("CONVOY_TEST_TMA");
        // Each case has a pass that TMA takes; else other kernels would be tested here.
        int64_t before = -1;
        const auto came_this_way = [&] {
            const bool copied = simt::boxes_copied > before;
            before = simt::boxes_copied;
            return copied || backend->name() != "simt";
        };
        came_this_way();
        for (const ConvCase& c : kBoxCases) {
            check_conv(*backend, Precision::kBf16, c);
            CHECK(came_this_way());
        }
        check_linear_in(*backend, Precision::kBf16, {5, 2, 3, 56}, 67);
        CHECK(came_this_way());
        check_linear_in(*backend, Precision::kBf16, {130, 1, 1, 64}, 256);
        CHECK(came_this_way());
        if (*tiles == 'w') continue;
        for (const ConvCase& c : kConvCases) check_conv(*backend, Precision::kBf16, c);
    }
}

TEST_CASE("a backend refuses a wrong CONVOY_TEST_TMA") {
    setenv("CONVOY_TEST_TMA", "maybe", 1);
    CHECK_FAILS(make_backend(kernel_device(), {.precision = Precision::kBf16}), "maybe");
    unsetenv("CONVOY_TEST_TMA");
}

TEST_CASE("a NaN in the data comes out of a convolution on tensor cores, and 0 images are fine") {
    for (Precision precision : {Precision::kTf32, Precision::kBf16}) {
        ThroughDevice backend(
            make_backend(kernel_device(), {.threads = 1, .precision = precision}));
        float x = NAN, w = 1, y = 0;
        backend.conv2d({&x, 1, 1, 1, 1}, {&w, 1, 1, 1, 1}, nullptr, Window::square(1), true,
                       {&y, 1, 1, 1, 1});
        CHECK(std::isnan(y));
        backend.conv2d({nullptr, 0, 1, 1, 1}, {&w, 1, 1, 1, 1}, nullptr, Window::square(1), true,
                       {nullptr, 0, 1, 1, 1});
        backend.conv2d_grad_w({nullptr, 0, 1, 1, 1}, {nullptr, 0, 1, 1, 1}, Window::square(1),
                              {&w, 1, 1, 1, 1}, nullptr);
        CHECK(w == 1);
    }
}

TEST_CASE("convolutions on a GPU refuse images of more than 32767 rows or columns") {
    ThroughDevice backend(make_backend(kernel_device(), {.threads = 1}));
    std::vector<float> x(40000), y(40000);
    float w = 1;
    for (const Shape shape : {Shape{1, 40000, 1, 1}, Shape{1, 1, 40000, 1}})
        CHECK_FAILS(backend.conv2d({x.data(), shape}, {&w, 1, 1, 1, 1}, nullptr, Window::square(1),
                                   false, {y.data(), shape}),
                    "32767");
}

TEST_CASE("the CPU refuses tf32, the model says what it multiplies in") {
    CHECK_FAILS(make_backend("cpu", {.precision = Precision::kTf32}), "--precision tf32");
    const auto model = make_backend(kernel_device(), {.threads = 1, .precision = Precision::kTf32});
    CHECK(contains(model->description(), "products in tf32"));
}

TEST_SUITE_END();

}  // namespace convoy
