// LARS, LAMB and Muon beside their formulas in double, over 20 steps.
#include <cmath>

#include "src/train/optimizer.h"
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

TEST_CASE("lars, lamb and muon make twenty steps as their formulas in double do") {
    for (const char* which : {"lars", "lamb", "muon"})
        for (const bool clips : {false, true}) {
            CAPTURE(which);
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
            set_option(config, "optimizer", which);
            config.weight_decay = 0.01;
            config.clip_norm = clips ? 0.5 : 0;
            const bool is_lamb = config.optimizer == OptimizerKind::kLamb;
            const bool is_lars = config.optimizer == OptimizerKind::kLars;
            Optimizer optimizer(config, params, *backend);
            const double lr = is_lars ? 5 : 0.02, count = 4, mu = double(0.9f), beta2 = 0.999;
            std::map<std::string, Matrix> w, m, v;
            for (Param* p : params.all())
                w[p->name].assign(p->value.floats(), p->value.floats() + p->shape.elems()),
                    m[p->name].assign(p->shape.elems(), 0), v[p->name].assign(p->shape.elems(), 0);
            for (int t = 1; t <= 20; ++t) {
                std::map<std::string, Matrix> g;
                double squares = 0;
                for (Param* p : params.all()) {
                    const std::vector<float> sums =
                        random_floats(p->shape.elems(), uint64_t(t) + 9);
                    std::copy(sums.begin(), sums.end(), p->grad.floats());
                    for (const float sum : sums) g[p->name].push_back(sum / count);
                    squares += std::pow(length(g[p->name]), 2);
                }
                const double clip = clips ? std::min(1.0, 0.5 / (std::sqrt(squares) + 1e-6)) : 1;
                for (Param* p : params.all()) {
                    Matrix &wi = w[p->name], &mi = m[p->name], &vi = v[p->name], gi = g[p->name];
                    for (double& x : gi) x *= clip;
                    const double decay = p->decay ? 0.01 : 0, size = length(wi);
                    const double slope = length(gi);
                    const bool zero = size == 0 || slope == 0;
                    const double ratio =
                        p->decay && is_lars && !zero ? 0.001 * size / (slope + decay * size) : 1;
                    Matrix u = gi;
                    for (size_t i = 0; i < u.size(); ++i)
                        if (is_lamb) {
                            mi[i] = mu * mi[i] + (1 - mu) * gi[i];
                            vi[i] = beta2 * vi[i] + (1 - beta2) * gi[i] * gi[i];
                            u[i] = mi[i] / (1 - std::pow(mu, t)) /
                                       (std::sqrt(vi[i] / (1 - std::pow(beta2, t))) +
                                        (p->decay ? 1e-6 : 1e-8)) +
                                   decay * wi[i];
                        } else if (is_lars || !p->decay) {
                            u[i] = mi[i] = mu * mi[i] + ratio * (gi[i] + decay * wi[i]);
                        } else {
                            mi[i] = mu * mi[i] + gi[i];
                            u[i] = gi[i] + mu * mi[i];
                        }
                    double rate = lr;
                    if (p->decay && is_lamb && size > 0 && length(u) > 0) rate *= size / length(u);
                    if (p->decay && !is_lamb && !is_lars) {
                        const int K = p->shape.N, C = int(p->shape.row_elems());
                        u = orthogonal(u, K, C);
                        for (double& x : wi) x *= 1 - lr * decay;
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

TEST_CASE("lars, lamb and muon change nothing in a step that is to change nothing") {
    for (const char* which : {"lars", "lamb", "muon"}) {
        const auto backend = make_backend("cpu", {1});
        Params params;
        params.add(
            {.name = "a.weight", .shape = {3, 1, 1, 3}, .init = {Init::kNormal, 1}, .decay = true});
        params.allocate(*backend, 7);
        Config config;
        set_option(config, "optimizer", which);
        Optimizer optimizer(config, params, *backend);
        const std::vector<float> before(params.weights, params.weights + params.weights_size);
        params.grads[2] = NAN;
        params.block()->counters[StepCounters::kCount] = 1;
        params.block()->state = optimizer.next(0.1);
        optimizer.update();
        CHECK(params.block()->state.first_bad == 2);
        CHECK(std::vector<float>(params.weights, params.weights + params.weights_size) == before);
    }
}
