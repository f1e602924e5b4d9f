// --precision bf16: copies, and what ops refuse. Each other op has its case in bf16 where it has
// the one in fp32; steps of training: test_mixed.cpp.
#include "tests/check_ops.h"

namespace convoy {

TEST_SUITE_BEGIN("device");

TEST_CASE("copy between tensors of floats and bf16 rounds to the nearest, ties to even") {
    auto backend = each_backend(1, Precision::kBf16);
    for (int n : {1, 4, 1003}) {
        std::vector<float> x = random_floats(size_t(n), 1), back(x.size(), NAN);
        x[0] = 1 + 0x1p-8f;  // halfway, and the lower neighbour is even
        std::vector<uint16_t> halves(x.size(), 0x7FFF);
        const Shape shape{1, 1, 1, n};
        backend->copy({halves.data(), shape, Type::kBfloat16}, view(x, shape));
        backend->copy(view(back, shape), {halves.data(), shape, Type::kBfloat16});
        for (int i = 0; i < n; ++i) {
            CHECK(back[i] == reference::rounded(x[i], Precision::kBf16));
            CHECK(std::bit_cast<float>(uint32_t(halves[i]) << 16) == back[i]);
        }
    }
}

TEST_CASE("an op refuses tensors that hold another type than it can work with") {
    float x[8] = {}, y[8] = {};
    const Shape shape{1, 1, 1, 4};
    const Tensor halves(x, shape, Type::kBfloat16), floats(y, shape);
    const Tensor w(x, {4, 1, 1, 4});
    CHECK_FAILS(make_backend("cpu")->linear(halves, w, nullptr, false, floats),
                "tensor 1x1x1x4 is bf16");
    for (const std::string& device : {std::string("cpu"), kernel_device()}) {
        auto model = make_backend(device, {.threads = 1, .precision = Precision::kBf16});
        CHECK_FAILS(model->add(halves, floats), "x holds bf16, y fp32");
        CHECK_FAILS(model->linear(floats, w, nullptr, false, floats), "fp32");
        CHECK_FAILS(model->linear(halves, w, nullptr, false, halves),
                    "a tensor 4x1x1x4 of fp32 among others of bf16");
    }
}

TEST_SUITE_END();

}  // namespace convoy
