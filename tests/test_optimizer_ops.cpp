#include "kernels/backend.h"
#include "tests/support.h"
#include "tests/through_device.h"

namespace convoy {

TEST_CASE("sgd makes three steps as its formula in double does, plain and Nesterov") {
    auto backend = each_backend(2);
    for (bool nesterov : {false, true})
        for (size_t n : {size_t(0), size_t(1), size_t(70'001)}) {
            const std::vector<float> start = random_floats(n, 1);
            Guarded w(start), v(n, 0.0f);
            std::vector<double> want(start.begin(), start.end()), velocity(n, 0.0);
            for (int step = 0; step < 3; ++step) {
                const std::vector<float> g = random_floats(n, 2 + step);
                backend->sgd(w.data(), g.data(), v.data(), n, 0.25f, 0.1f, 0.9f, 0.01f, nesterov);
                for (size_t i = 0; i < n; ++i) {
                    const double grad = 0.25 * g[i] + double(0.01f) * want[i];
                    velocity[i] = double(0.9f) * velocity[i] + grad;
                    want[i] -=
                        double(0.1f) * (nesterov ? grad + double(0.9f) * velocity[i] : velocity[i]);
                }
            }
            CHECK_CLOSE(w.span(), want, sum_tolerance(8));
            CHECK_CLOSE(v.span(), velocity, sum_tolerance(8));
        }
}

TEST_CASE("adamw makes three steps as its formula in double does") {
    auto backend = each_backend(2);
    const size_t n = 20'003;
    const float lr = 0.01f, b1 = 0.9f, b2 = 0.999f, eps = 1e-8f, decay = 0.1f;
    const std::vector<float> start = random_floats(n, 1);
    Guarded w(start), m(n, 0.0f), v(n, 0.0f);
    std::vector<double> want(start.begin(), start.end()), first(n, 0.0), second(n, 0.0);
    for (int t = 1; t <= 3; ++t) {
        const std::vector<float> g = random_floats(n, 1 + t);
        backend->adamw(w.data(), g.data(), m.data(), v.data(), n, 0.5f, lr, b1, b2, eps, decay, t);
        for (size_t i = 0; i < n; ++i) {
            const double grad = 0.5 * g[i];
            want[i] -= double(lr) * decay * want[i];
            first[i] = b1 * first[i] + (1 - double(b1)) * grad;
            second[i] = b2 * second[i] + (1 - double(b2)) * grad * grad;
            want[i] -= lr * (first[i] / (1 - std::pow(double(b1), t))) /
                       (std::sqrt(second[i] / (1 - std::pow(double(b2), t))) + eps);
        }
    }
    // 1 − β2 in float is off by 2⁻²⁴/0.001 = 6e-5 of itself; w moves by lr a step.
    CHECK_CLOSE(w.span(), want, 3 * lr * 6e-5 + sum_tolerance(8));
    CHECK_CLOSE(m.span(), first, sum_tolerance(8));
}

TEST_CASE("adamw counts its steps from 1") {
    float x = 0;
    CHECK_THROWS_AS(make_backend("cpu")->adamw(&x, &x, &x, &x, 1, 1, 1, 0.9f, 0.9f, 1, 0, 0),
                    Error);
}

TEST_CASE("axpby mixes two vectors, and does not read what counts 0 times") {
    auto backend = each_backend();
    const std::vector<float> x = random_floats(37, 1), start = random_floats(37, 2);
    Guarded y(start);
    backend->axpby(0.05f, x.data(), 0.9f, y.data(), 37);
    std::vector<double> want(37);
    for (int i = 0; i < 37; ++i) want[i] = 0.9f * double(start[i]) + 0.05f * double(x[i]);
    CHECK_CLOSE(y.span(), want, sum_tolerance(2));
    Guarded poisoned(37);
    backend->axpby(0.5f, x.data(), 0, poisoned.data(), 37);
    for (int i = 0; i < 37; ++i) want[i] = 0.5 * x[i];
    CHECK_CLOSE(poisoned.span(), want, 0);
}

TEST_CASE("first_nonfinite finds the first NaN or infinity, wherever it is") {
    for (int threads : {1, 3}) {
        auto backend = make_backend("cpu", {.threads = threads});
        std::vector<float> x = random_floats(60'000, 1);
        CHECK(backend->first_nonfinite(x.data(), 0) == -1);
        CHECK(backend->first_nonfinite(x.data(), x.size()) == -1);
        x[0] = std::numeric_limits<float>::max();
        CHECK(backend->first_nonfinite(x.data(), x.size()) == -1);
        for (size_t at : {59'999u, 40'000u, 4'096u, 4'095u, 17u, 0u}) {
            x[at] = at % 2 ? NAN : -std::numeric_limits<float>::infinity();
            CHECK(backend->first_nonfinite(x.data(), x.size()) == int64_t(at));
        }
    }
}

}  // namespace convoy
