// Convolutions and linear layers in tf32 and bf16, on tensor cores and on the CPU.
#include <cstdlib>

#include "tests/check_ops.h"

namespace convoy {

TEST_SUITE_BEGIN("device");

TEST_CASE("conv2d and its gradients in tf32 are the formula of numbers with 10 bits") {
    auto backend = each_backend(2, Precision::kTf32);
    for (const ConvCase& c : kConvCases) check_conv(*backend, Precision::kTf32, c);
    check_linear_in(*backend, Precision::kTf32, {5, 2, 3, 50}, 67);
}

TEST_CASE("conv2d and its gradients in bf16 are the formula of numbers with 7 bits") {
    auto backend = each_direct(2, Precision::kBf16);
    for (const char* groups : {"off", "on"}) {  // products of single warps, and of groups
        setenv("CONVOY_TEST_WGMMA", groups, 1);
        for (const ConvCase& c : kConvCases) check_conv(*backend, Precision::kBf16, c);
    }
    for (const ConvCase& c : kDepthwiseCases) check_conv(*backend, Precision::kBf16, c);
    check_linear_in(*backend, Precision::kBf16, {5, 2, 3, 50}, 67);
}

TEST_CASE("products of bf16 refuse a wrong CONVOY_TEST_WGMMA") {
    ThroughDevice backend(
        make_backend(kernel_device(), {.threads = 1, .precision = Precision::kBf16}));
    float x = 2, w = 3, y = 0;
    const auto multiply = [&] {
        backend.conv2d({&x, 1, 1, 1, 1}, {&w, 1, 1, 1, 1}, nullptr, Window::square(1), false,
                       {&y, 1, 1, 1, 1});
    };
    setenv("CONVOY_TEST_WGMMA", "maybe", 1);
    CHECK_FAILS(multiply(), "maybe");
    unsetenv("CONVOY_TEST_WGMMA");
    multiply();
    CHECK(y == 6);
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
