#include "kernels/backend.h"
#include "tests/support.h"
#include "tests/through_device.h"

namespace convoy {

TEST_SUITE_BEGIN("device");

TEST_CASE("sgd makes three steps as its formula in double does, plain and Nesterov") {
    auto backend = each_backend(2);
    for (bool nesterov : {false, true})
        for (size_t n : {size_t(0), size_t(1), size_t(70'001)}) {
            const std::vector<float> start = random_floats(n, 1);
            Guarded w(start), v(n, 0.0f);
            const Segment all{0, n, 0.01f};
            const StepState state{.lr = 0.1f, .scale = 0.25f};
            std::vector<double> want(start.begin(), start.end()), velocity(n, 0.0);
            for (int step = 0; step < 3; ++step) {
                const std::vector<float> g = random_floats(n, 2 + step);
                backend->sgd(w.data(), g.data(), v.data(), n, {{&all, 1}}, &state, 0.9f, nesterov);
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
    const Segment all{0, n, decay};
    const std::vector<float> start = random_floats(n, 1);
    Guarded w(start), m(n, 0.0f), v(n, 0.0f);
    std::vector<double> want(start.begin(), start.end()), first(n, 0.0), second(n, 0.0);
    for (int t = 1; t <= 3; ++t) {
        const std::vector<float> g = random_floats(n, 1 + t);
        const auto bias = [&](float beta) { return float(1 - std::pow(double(beta), t)); };
        const StepState state{.lr = lr, .bias1 = bias(b1), .bias2 = bias(b2), .scale = 0.5f};
        backend->adamw(w.data(), g.data(), m.data(), v.data(), n, {{&all, 1}}, &state, b1, b2, eps);
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

TEST_CASE("sgd and adamw update each segment of a slice with its factors, and nothing else") {
    auto backend = each_backend(2);
    // More floats than a grid has threads, a segment of one float, neighbours, a gap at each end.
    const size_t first = 100, n = 300'000;
    const std::vector<Segment> list = {
        {0, 90, 9, 9},         {95, 120, 0.1f, 1},       {130, 131, 0, 1},
        {131, 2'000, 0.1f, 2}, {2'000, 200'007, 0, 0.5}, {200'016, 290'000, 0.1f, 1}};
    const std::vector<float> start = random_floats(n, 1), g = random_floats(n, 2);
    const StepState state{.lr = 0.1f, .bias1 = 0.1f, .bias2 = 0.001f, .scale = 0.25f};
    std::vector<float> want[5] = {start, start, start, start, {}};
    for (const float v : g) want[4].push_back(v * v);
    Guarded got[] = {Guarded(want[0]), Guarded(want[1]), Guarded(want[2]), Guarded(want[3]),
                     Guarded(want[4])};
    for (const Segment& segment : list) {
        if (segment.end <= first) continue;
        const size_t at = std::max(segment.begin, first) - first, count = segment.end - first - at;
        const Segment own{0, count, segment.weight_decay, segment.rate};
        backend->sgd(&want[0][at], &g[at], &want[1][at], count, {{&own, 1}}, &state, 0.9f, false);
        backend->adamw(&want[2][at], &g[at], &want[3][at], &want[4][at], count, {{&own, 1}}, &state,
                       0.9f, 0.999f, 1e-8f);
    }
    backend->sgd(got[0].data(), g.data(), got[1].data(), n, {list, first}, &state, 0.9f, false);
    backend->adamw(got[2].data(), g.data(), got[3].data(), got[4].data(), n, {list, first}, &state,
                   0.9f, 0.999f, 1e-8f);
    for (int i = 0; i < 5; ++i) CHECK(std::vector<float>(got[i]) == want[i]);
}

TEST_CASE("sum_squares is the sum in double, and has the same bits with any number of threads") {
    for (const std::string& device : {std::string("cpu"), kernel_device()}) {
        CAPTURE(device);
        for (const size_t n : {0, 1, 37, 4097, 70'001}) {
            std::vector<float> x = random_floats(n, 1);
            double want = 0;
            for (const float v : x) want += double(v) * v;
            std::vector<float> sums;
            for (const int threads : {1, 2, 3}) {
                auto backend = make_backend(device, {.threads = threads});
                float *there = backend->alloc(n + 1), *sum = backend->alloc(1);
                backend->upload(there, x.data(), n * sizeof(float));
                backend->sum_squares(there, n, sum);
                backend->download(&sums.emplace_back(), sum, sizeof(float));
            }
            CAPTURE(n);
            CHECK(std::abs(sums[0] - want) <= 1e-6 * want);
            CHECK(sums == std::vector(3, sums[0]));
        }
    }
}

TEST_CASE("clip bounds what sgd and adamw take of a gradient, as clip_grad_norm_ does") {
    auto backend = each_backend(2);
    const std::vector<float> g = {3, -4, 12};  // of norm 13, divided by two images
    const float squares = 169;
    const Segment all{0, 3};
    for (const auto& [limit, factor] :
         {std::pair{2.0f, 2 / 6.500001}, {6.5f, 1.0}, {100.0f, 1.0}}) {
        StepState state{.lr = 0.1f, .bias1 = 0.1f, .bias2 = 0.001f, .scale = 0.5f};
        backend->clip(&squares, limit, &state);
        CHECK(state.norm == 6.5f);
        CHECK(state.clip == doctest::Approx(factor).epsilon(1e-6));
        Guarded w(3, 0.0f), v(3, 0.0f), m(3, 0.0f), u(3, 0.0f), z(3, 0.0f);
        backend->sgd(w.data(), g.data(), v.data(), 3, {{&all, 1}}, &state, 0.9f, false);
        CHECK(w.span()[2] == doctest::Approx(-0.1 * 6 * factor));
        backend->adamw(z.data(), g.data(), m.data(), u.data(), 3, {{&all, 1}}, &state, 0.9f, 0.999f,
                       1e-8f);
        CHECK(m.span()[2] == doctest::Approx(0.1 * 6 * factor));
        const StepState none{.lr = 0.1f, .scale = 0, .clip = 0.5f};
        backend->sgd(w.data(), g.data(), v.data(), 3, {{&all, 1}}, &none, 0.9f, false);
        CHECK(w.span()[2] == doctest::Approx(-0.1 * 6 * factor));
    }
}

TEST_CASE("moving_mean goes a part of the way to the mean of the sums, average to the weights") {
    auto backend = each_backend();
    const std::vector<float> x = random_floats(37, 1), start = random_floats(37, 2);
    Guarded moving(start), average(start);
    const StepState state{.scale = 0.25f, .part = 0.3f};
    backend->moving_mean(moving.data(), x.data(), 37, &state, 0.1f);
    backend->average(average.data(), x.data(), 37, &state);
    std::vector<double> want_moving(start.begin(), start.end()), want_average = want_moving;
    for (size_t i = 0; i < 37; ++i) {
        want_moving[i] += double(0.1f) * (0.25 * x[i] - double(start[i]));
        want_average[i] += double(0.3f) * (double(x[i]) - double(start[i]));
    }
    CHECK_CLOSE(moving.span(), want_moving, sum_tolerance(3));
    CHECK_CLOSE(average.span(), want_average, sum_tolerance(3));
}

TEST_CASE("a step of scale 0 leaves weights, statistics and optimizer state as they were") {
    auto backend = each_backend(2);
    const size_t n = 20'003;
    const std::vector<float> start = random_floats(n, 1), g(n, NAN);
    Guarded w(start), m(start), v(start);
    const StepState state{.lr = 0.1f, .scale = 0};
    const Segment all{0, n, 0.1f};
    backend->sgd(w.data(), g.data(), v.data(), n, {{&all, 1}}, &state, 0.9f, true);
    backend->adamw(w.data(), g.data(), m.data(), v.data(), n, {{&all, 1}}, &state, 0.9f, 0.999f,
                   1e-8f);
    backend->moving_mean(w.data(), g.data(), n, &state, 0.1f);
    backend->average(w.data(), g.data(), n, &state);
    for (Guarded* after : {&w, &m, &v}) CHECK(std::vector<float>(*after) == start);
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

TEST_CASE(
    "check_finite finds the first NaN or infinity, wherever it is, and only else gives a scale") {
    for (const std::string& device : {std::string("cpu"), kernel_device()})
        for (int threads : {1, 3}) {
            auto backend = make_backend(device, {.threads = threads});
            CAPTURE(device);
            const size_t n = device == "cpu" ? 60'000 : 5'000;
            std::vector<float> x = random_floats(n, 1);
            float *there = backend->alloc(n), *images = backend->alloc(1);
            auto* step = reinterpret_cast<StepState*>(backend->alloc(sizeof(StepState) / 4));
            const auto check_finite = [&](size_t elems, float count, int64_t bad, float scale) {
                StepState state{.lr = 3, .scale = 7, .first_bad = 7};
                backend->upload(step, &state, sizeof state);
                backend->upload(there, x.data(), n * sizeof(float));
                backend->upload(images, &count, sizeof count);
                backend->check_finite(there, elems, images, step);
                backend->download(&state, step, sizeof state);
                CHECK(state.first_bad == bad);
                CHECK(state.scale == scale);
                CHECK(state.lr == 3);
            };
            check_finite(0, 8, -1, 0.125f);
            check_finite(n, 3, -1, 1 / 3.0f);
            check_finite(n, 0, -1, 0);  // no images: nothing to learn from
            x[0] = std::numeric_limits<float>::max();
            check_finite(n, 8, -1, 0.125f);
            for (size_t at : {n - 1, n / 10 * 9, size_t(4'096), size_t(4'095), size_t(0)}) {
                x[at] = at % 2 ? NAN : -std::numeric_limits<float>::infinity();
                check_finite(n, 8, int64_t(at), 0);
            }
        }
}

TEST_SUITE_END();

}  // namespace convoy
