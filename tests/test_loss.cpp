#include "src/step/class_bias.h"
#include "tests/check_ops.h"
#include "tests/golden_policy.h"

namespace convoy {

TEST_SUITE_BEGIN("device");

static void check_cross_entropy(Backend& backend, Precision precision) {
    const std::pair<int, int> sizes[] = {{1, 1}, {5, 3}, {33, 10}, {4, 1000}};
    for (const auto& [N, C] : sizes)
        for (float smoothing : {0.0f, 0.1f}) {
            CAPTURE(cat(N, " images, ", C, " classes, smoothing ", smoothing));
            std::vector<float> x = random_floats(size_t(N) * C, 1);
            for (float& v : x) v = std::round(v * 40) / 4;  // equal logits occur
            std::vector<int32_t> labels(N);
            for (int n = 0; n < N; ++n) labels[n] = n * 7 % C;
            double loss = 2, correct = 2, top5 = 2;
            std::vector<double> want(x.size());
            for (int n = 0; n < N; ++n) {
                const std::vector<double> row(x.begin() + n * C, x.begin() + (n + 1) * C);
                const auto p = reference::softmax(row.data(), C);
                int rank = 1;
                for (int c = 0; c < C; ++c) {
                    const double target =
                        (1 - double(smoothing)) * (c == labels[n]) + double(smoothing) / C;
                    want[n * C + c] = p[c] - target;
                    loss -= target * std::log(p[c]);
                    rank += row[c] > row[labels[n]] || (row[c] == row[labels[n]] && c < labels[n]);
                }
                correct += rank == 1, top5 += rank <= 5;
            }
            Guarded dlogits(x.size()), sums(3, 2.0f);
            backend.softmax_cross_entropy({x.data(), N, 1, 1, C}, labels, smoothing,
                                          {dlogits.data(), N, 1, 1, C}, sums.data());
            check_stored(dlogits.span(), want, sum_tolerance(1), precision, "dlogits");
            CHECK(sums.data()[0] == doctest::Approx(loss).epsilon(1e-6));
            CHECK(sums.data()[1] == correct);
            CHECK(sums.data()[2] == top5);

            std::vector<float> alone(3, 2.0f);  // without gradient, as in evaluation
            backend.softmax_cross_entropy({x.data(), N, 1, 1, C}, labels, smoothing,
                                          {nullptr, N, 1, 1, C}, alone.data());
            CHECK(alone == std::vector<float>(sums));
        }
}

TEST_CASE("softmax_cross_entropy matches the formula in double: loss, gradient, ranks") {
    in_both(check_cross_entropy);
}

TEST_CASE("softmax_cross_entropy with mixed labels gives PyTorch's loss and gradient") {
    auto backend = each_backend(2);
    const std::vector<float> x(std::begin(golden::kLogits), std::end(golden::kLogits));
    Guarded dlogits(15), sums(3, 0.0f);
    backend->softmax_cross_entropy({const_cast<float*>(x.data()), 3, 1, 1, 5}, golden::kFirst, 0.1f,
                                   {dlogits.data(), 3, 1, 1, 5}, sums.data(),
                                   {golden::kSecond, golden::kParts});
    CHECK(sums.data()[0] == doctest::Approx(golden::kMixedLoss).epsilon(1e-6));
    CHECK_CLOSE(dlogits.span(), golden::kMixedGrad, 1e-6);
    // By the heavier label: class 2 of image 0, 4 of image 1, 1 of image 2 are each the largest.
    CHECK(sums.data()[1] == 3);
}

TEST_CASE("softmax_cross_entropy with mixed labels: formula, ranks, finite differences") {
    auto backend = each_backend(2);
    const int N = 37, C = 35;
    std::vector<float> x = random_floats(size_t(N) * C, 1);
    for (float& v : x) v = std::round(v * 40) / 8;
    std::vector<int32_t> first(N), second(N), heavier(N);
    std::vector<float> parts = random_floats(N, 3);
    for (int n = 0; n < N; ++n) {
        first[n] = n * 7 % C, second[n] = n % 5 == 0 ? first[n] : n * 11 % C;
        parts[n] = n == 1 ? 0.5f : n == 2 ? 1 : n == 3 ? 0 : (parts[n] + 1) / 2;
        heavier[n] = parts[n] < 0.5f ? second[n] : first[n];
    }
    const auto sums_at = [&](const std::vector<float>& logits, float smoothing) {
        double loss = 0;
        for (int n = 0; n < N; ++n) {
            const std::vector<double> row(logits.begin() + n * C, logits.begin() + (n + 1) * C);
            const auto p = reference::softmax(row.data(), C);
            for (int c = 0; c < C; ++c) {
                const double part = double(parts[n]);
                const double hot = part * (c == first[n]) + (1 - part) * (c == second[n]);
                loss -= ((1 - double(smoothing)) * hot + double(smoothing) / C) * std::log(p[c]);
            }
        }
        return loss;
    };
    for (float smoothing : {0.0f, 0.1f}) {
        Guarded dlogits(x.size()), sums(3, 0.0f);
        backend->softmax_cross_entropy({x.data(), N, 1, 1, C}, first, smoothing,
                                       {dlogits.data(), N, 1, 1, C}, sums.data(), {second, parts});
        CHECK(sums.data()[0] == doctest::Approx(sums_at(x, smoothing)).epsilon(1e-6));
        for (size_t i = 0; i < x.size(); i += 13) {
            std::vector<float> up = x, down = x;
            up[i] += 0x1p-8f, down[i] -= 0x1p-8f;  // exact beside the rounded logits
            const double slope = (sums_at(up, smoothing) - sums_at(down, smoothing)) / 0x1p-7;
            CHECK(dlogits.data()[i] == doctest::Approx(slope).epsilon(1e-5));
        }
        std::vector<float> alone(3);
        backend->softmax_cross_entropy({x.data(), N, 1, 1, C}, heavier, smoothing, {},
                                       alone.data());
        CHECK(sums.data()[1] == alone[1]);
        CHECK(sums.data()[2] == alone[2]);
    }
}

TEST_CASE("--balance adds the logarithm of each class's part of the images to the logits") {
    const auto backend = make_backend("cpu");
    float x[] = {1, 2, 3, 0, 0, 0}, dx[6], sums[BatchSums::kFloats] = {};
    const Tensor logits(x, {2, 1, 1, 3});
    const ClassBias bias({30, 10, 0}, true, 2, *backend), none({30, 10, 0}, false, 2, *backend);
    CHECK(none.added(logits, 0, *backend).data == logits.data);
    const std::vector<int32_t> labels = {1, 2};
    backend->softmax_cross_entropy(bias.added(logits, 0, *backend), labels, 0, {dx, 2, 1, 1, 3},
                                   sums);
    // p[c] = n[c]·exp(x[c]) / Σ n·exp(x), a class without images counting as one with one.
    const double n[] = {30, 10, 1};
    for (int i = 0; i < 2; ++i) {
        double sum = 0;
        for (int c = 0; c < 3; ++c) sum += n[c] * std::exp(double(x[3 * i + c]));
        for (int c = 0; c < 3; ++c)
            CHECK(dx[3 * i + c] == doctest::Approx(n[c] * std::exp(double(x[3 * i + c])) / sum -
                                                   (c == labels[size_t(i)])));
    }
    CHECK(x[0] == 1);
    const Tensor second = bias.added(logits.images(1, 2), 1, *backend);
    CHECK(second.floats()[1] == doctest::Approx(std::log(0.25)));
}

TEST_CASE("softmax_cross_entropy survives logits of any size") {
    auto backend = each_backend();
    float x[3] = {3e38f, -3e38f, 0}, dx[3], sums[3] = {};
    const std::vector<int32_t> labels{0};
    backend->softmax_cross_entropy({x, 1, 1, 1, 3}, labels, 0, {dx, 1, 1, 1, 3}, sums);
    CHECK(sums[0] == 0);
    CHECK(sums[1] == 1);
    for (float v : dx) CHECK(v == 0);
}

TEST_CASE("softmax sums to one, in place too") {
    auto backend = each_backend(2);
    std::vector<float> x = random_floats(6 * 37, 1);
    Guarded y(x.size());
    backend->softmax({x.data(), 6, 1, 1, 37}, {y.data(), 6, 1, 1, 37});
    for (int n = 0; n < 6; ++n) {
        const std::vector<double> row(x.begin() + n * 37, x.begin() + (n + 1) * 37);
        CHECK_CLOSE(y.span().subspan(size_t(n) * 37, 37), reference::softmax(row.data(), 37),
                    sum_tolerance(1));
    }
    backend->softmax({x.data(), 6, 1, 1, 37}, {x.data(), 6, 1, 1, 37});
    CHECK(x == std::vector<float>(y));
}

TEST_CASE("softmax_cross_entropy of no images adds nothing; a label outside is refused") {
    auto backend = each_backend();
    Guarded sums(std::vector<float>{1, 2, 3});
    backend->softmax_cross_entropy({nullptr, 0, 1, 1, 4}, {}, 0, {}, sums.data());
    CHECK(std::vector<float>(sums) == std::vector<float>{1, 2, 3});
    float x[4] = {};
    const std::vector<int32_t> wrong{4}, two{0, 1};
    CHECK_FAILS(backend->softmax_cross_entropy({x, 1, 1, 1, 4}, wrong, 0, {}, sums.data()),
                "label of image 0 is 4 of 4 classes");
    CHECK_THROWS_AS(backend->softmax_cross_entropy({x, 1, 1, 1, 4}, two, 0, {}, sums.data()),
                    Error);
    const std::vector<int32_t> right{3};
    const std::vector<float> part{0.5f};
    for (const MixedLabels& mixed : {MixedLabels{wrong, part}, {right, {}}, {two, part}})
        CHECK_THROWS_AS(
            backend->softmax_cross_entropy({x, 1, 1, 1, 4}, right, 0, {}, sums.data(), mixed),
            Error);
}

TEST_SUITE_END();

}  // namespace convoy
