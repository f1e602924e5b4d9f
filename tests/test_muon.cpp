// Muon beside its formula in double, over 20 steps.
#include <cmath>

#include "src/step/optimizer.h"
#include "tests/support.h"

using namespace convoy;

namespace {

using Matrix = std::vector<double>;

double length(const Matrix& x) {
    double sum = 0;
    for (const double v : x) sum += v * v;
    return std::sqrt(sum);
}

// x is K×C: five steps of X ← aX + b(XXᵀ)X + c(XXᵀ)²X, written as it stands in the paper.
Matrix orthogonal(Matrix x, int K, int C) {
    const double size = std::max(length(x), 1e-7);
    for (double& v : x) v /= size;
    const auto times_gram = [&](const Matrix& y) {  // (X·Xᵀ)·y
        Matrix inner(size_t(C) * C, 0), out(y.size(), 0);
        for (int i = 0; i < C; ++i)
            for (int j = 0; j < C; ++j)
                for (int k = 0; k < K; ++k) inner[i * C + j] += x[k * C + i] * y[k * C + j];
        for (int k = 0; k < K; ++k)
            for (int j = 0; j < C; ++j)
                for (int i = 0; i < C; ++i) out[k * C + j] += x[k * C + i] * inner[i * C + j];
        return out;
    };
    for (int step = 0; step < 5; ++step) {
        const Matrix once = times_gram(x), twice = times_gram(once);
        for (size_t i = 0; i < x.size(); ++i)
            x[i] = 3.4445 * x[i] - 4.7750 * once[i] + 2.0315 * twice[i];
    }
    return x;
}

}  // namespace

TEST_CASE("muon makes twenty steps as its formula in double does") {
    for (const bool clips : {false, true}) {
        CAPTURE(clips);
        const auto backend = make_backend("cpu", {2});
        Params params;
        params.add({.name = "wide.weight",
                    .shape = {4, 3, 3, 2},
                    .init = {Init::kNormal, 0.5},
                    .decay = true,
                    .dims = 4});
        params.add({.name = "wide.bias", .shape = {1, 1, 1, 4}, .init = {Init::kNormal, 0.5}});
        params.add({.name = "tall.weight",
                    .shape = {9, 1, 1, 5},
                    .init = {Init::kNormal, 0.5},
                    .decay = true,
                    .dims = 2});
        params.add({.name = "zero.weight", .shape = {3, 1, 1, 3}, .decay = true, .dims = 2});
        params.allocate(*backend, 7);
        Config config;
        config.optimizer = OptimizerKind::kMuon;
        config.weight_decay = 0.01;
        config.clip_norm = clips ? 0.5 : 0;
        Optimizer optimizer(config, params, *backend);
        const double lr = 0.02, count = 4, mu = double(0.9f);
        std::map<std::string, Matrix> w, m;
        for (Param* p : params.all())
            w[p->name].assign(p->value.floats(), p->value.floats() + p->shape.elems()),
                m[p->name].assign(p->shape.elems(), 0);
        for (int t = 1; t <= 20; ++t) {
            std::map<std::string, Matrix> g;
            double squares = 0;
            for (Param* p : params.all()) {
                const std::vector<float> sums = random_floats(p->shape.elems(), uint64_t(t) + 9);
                std::copy(sums.begin(), sums.end(), p->grad.floats());
                for (const float sum : sums) g[p->name].push_back(sum / count);
                squares += std::pow(length(g[p->name]), 2);
            }
            const double clip = clips ? std::min(1.0, 0.5 / (std::sqrt(squares) + 1e-6)) : 1;
            for (Param* p : params.all()) {
                Matrix &wi = w[p->name], &mi = m[p->name], gi = g[p->name];
                for (double& x : gi) x *= clip;
                for (size_t i = 0; i < gi.size(); ++i) mi[i] = mu * mi[i] + gi[i];
                Matrix u = mi;
                double rate = lr;
                if (p->decay) {
                    for (size_t i = 0; i < u.size(); ++i) u[i] = gi[i] + mu * mi[i];
                    const int K = p->shape.N, C = int(p->shape.row_elems());
                    u = orthogonal(u, K, C);
                    for (double& x : wi) x *= 1 - lr * 0.01;
                    rate *= std::sqrt(std::max(1.0, double(K) / C));
                }
                for (size_t i = 0; i < u.size(); ++i) wi[i] -= rate * u[i];
            }
            params.block()->counters[StepCounters::kCount] = float(count);
            params.block()->state = optimizer.next(lr);
            optimizer.update();
            ++optimizer.steps_done;
        }
        for (Param* p : params.all()) {
            CAPTURE(p->name);
            CHECK_CLOSE(std::span(p->value.floats(), p->shape.elems()), w[p->name], 1e-5);
        }
    }
}

TEST_CASE("muon changes nothing in a step with a gradient that is not finite") {
    const auto backend = make_backend("cpu", {1});
    Params params;
    params.add(
        {.name = "a.weight", .shape = {3, 1, 1, 3}, .init = {Init::kNormal, 1}, .decay = true});
    params.allocate(*backend, 7);
    Config config;
    config.optimizer = OptimizerKind::kMuon;
    Optimizer optimizer(config, params, *backend);
    const std::vector<float> before(params.weights, params.weights + params.weights_size);
    params.grads[2] = NAN;
    params.block()->counters[StepCounters::kCount] = 1;
    params.block()->state = optimizer.next(0.1);
    optimizer.update();
    CHECK(params.block()->state.first_bad == 2);
    CHECK(std::vector<float>(params.weights, params.weights + params.weights_size) == before);
}
