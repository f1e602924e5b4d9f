// --precision bf16: copies, dropout, the loss, and what ops refuse. Each other op has its case in
// bf16 where it has the one in fp32; steps of training: test_mixed.cpp.
#include "tests/check_ops.h"

namespace convoy {

TEST_SUITE_BEGIN("device");

static std::vector<float> random_halves(size_t n, uint64_t seed) {
    return rounded(random_floats(n, seed), Precision::kBf16);
}

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

TEST_CASE("bf16: dropout keeps what the draws of Random say") {
    auto backend = each_backend(2, Precision::kBf16);
    const std::vector<uint64_t> ids{7, 3'000'000'000'000ull};
    const int row = 103;
    const std::vector<float> x = random_halves(2 * row, 1);
    std::vector<float> want = x;
    for (int n = 0; n < 2; ++n) {
        Random random(5, 1, ids[n], kLayer);
        for (int i = 0; i < row; ++i)
            want[n * row + i] *= random.uniform() >= 0.3f ? 1 / (1 - 0.3f) : 0.0f;
    }
    Guarded got(x);
    backend->dropout({got.data(), 2, 1, 1, row}, 0.3f, {5, 1}, ids, kLayer);
    check_stored(got.span(), want, 0, Precision::kBf16, "dropout");
}

TEST_CASE("bf16: the loss is that of the logits in fp32, its gradient is rounded") {
    auto backend = each_backend(1, Precision::kBf16);
    const int N = 5, C = 37;
    std::vector<float> x = random_floats(size_t(N) * C, 1);
    for (float& v : x) v *= 8;
    const std::vector<int32_t> labels{0, 5, 9, 36, 1};
    std::vector<double> want(x.size());
    double loss = 0;
    for (int n = 0; n < N; ++n) {
        const std::vector<double> row(x.begin() + n * C, x.begin() + (n + 1) * C);
        const auto p = reference::softmax(row.data(), C);
        loss -= std::log(p[labels[n]]);
        for (int c = 0; c < C; ++c) want[n * C + c] = p[c] - (c == labels[n]);
    }
    Guarded dlogits(x.size()), sums(3, 0.0f);
    const Shape shape{N, 1, 1, C};
    backend->softmax_cross_entropy(view(x, shape), labels, 0, view(dlogits, shape), sums.data());
    check_stored(dlogits.span(), want, sum_tolerance(1), Precision::kBf16, "dlogits");
    CHECK(sums.data()[0] == doctest::Approx(loss).epsilon(1e-6));
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
