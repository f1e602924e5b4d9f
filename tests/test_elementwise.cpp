#include "kernels/backend.h"
#include "tests/support.h"
#include "tests/through_device.h"

namespace convoy {

TEST_SUITE_BEGIN("device");

TEST_CASE("relu, relu_grad and add change each number as their formulas say") {
    auto backend = each_backend(2);
    for (int n : {0, 1, 77, 100'000}) {
        const std::vector<float> x = random_floats(n, 1), y = random_floats(n, 2);
        Guarded a(x), b(y), c(x);
        std::vector<float> other = y, want_a(n), want_b(n), want_c(n);
        for (int i = 0; i < n; ++i) {
            want_a[i] = x[i] > 0 ? x[i] : 0;
            want_b[i] = want_a[i] > 0 ? y[i] : 0;
            want_c[i] = x[i] + y[i];
        }
        backend->relu({a.data(), n, 1, 1, 1});
        backend->relu_grad({a.data(), n, 1, 1, 1}, {b.data(), n, 1, 1, 1});
        backend->add({c.data(), n, 1, 1, 1}, {other.data(), n, 1, 1, 1});
        CHECK(std::vector<float>(a) == want_a);
        CHECK(std::vector<float>(b) == want_b);
        CHECK(std::vector<float>(c) == want_c);
    }
    float nan = NAN;
    backend->relu({&nan, 1, 1, 1, 1});
    CHECK(std::isnan(nan));  // not hidden: it must reach the loss
}

TEST_CASE("dropout keeps exactly what the draws of Random say, for each sample by its number") {
    const uint64_t seed = 0x123456789abcdefull;
    const std::vector<uint64_t> ids{7, 3'000'000'000'000ull, 7};
    for (int row : {1, 5, 64, 1003})
        for (int threads : {1, 3}) {
            auto backend = make_backend("cpu", {.threads = threads});
            const std::vector<float> x = random_floats(3 * size_t(row), 1);
            std::vector<float> want = x;
            for (int n = 0; n < 3; ++n) {
                Random random(seed, 5, ids[n], kLayer + 2);
                for (int i = 0; i < row; ++i)
                    want[n * row + i] =
                        random.uniform() >= 0.3f ? x[n * row + i] * (1 / (1 - 0.3f)) : 0.0f;
            }
            Guarded got(x);
            backend->dropout({got.data(), 3, 1, 1, row}, 0.3f, {seed, 5}, ids, kLayer + 2);
            CHECK_CLOSE(got.span(), want, 0.0);
        }
}

TEST_CASE("dropout keeps about 1-p of the numbers and their mean") {
    auto backend = each_backend();
    const int n = 100'000;
    std::vector<float> x(n, 1.0f);
    const std::vector<uint64_t> ids{1};
    backend->dropout({x.data(), 1, 1, 1, n}, 0.5f, {1, 0}, ids, kLayer);
    double sum = 0;
    for (float v : x) sum += v;
    CHECK(std::abs(sum / n - 1) < 0.016);  // five standard deviations of the mean: 5/√n
}

TEST_CASE("elementwise ops refuse shapes that do not fit") {
    auto backend = each_backend();
    float data[8] = {};
    const std::vector<uint64_t> two{1, 2};
    CHECK_THROWS_WITH_AS(backend->add({data, 1, 1, 1, 4}, {data, 1, 1, 1, 3}),
                         doctest::Contains("x is 1x1x1x4, y is 1x1x1x3"), Error);
    CHECK_THROWS_AS(backend->relu_grad({data, 1, 1, 1, 4}, {data, 2, 1, 1, 4}), Error);
    CHECK_THROWS_WITH_AS(backend->dropout({data, 1, 1, 1, 4}, 0.5f, {1, 0}, two, kLayer),
                         doctest::Contains("sample_ids has 2"), Error);
    CHECK_THROWS_AS(backend->dropout({data, 2, 1, 1, 4}, 1.0f, {1, 0}, two, kLayer), Error);
}

}  // namespace convoy
