#include <algorithm>

#include "src/step/learning_rate.h"
#include "src/step/optimizer.h"
#include "tests/support.h"

using namespace convoy;

TEST_CASE("learning rate: warm-up is linear and ends at the base rate") {
    Config config;
    config.warmup = 2;
    config.schedule = Schedule::kConstant;
    CHECK(learning_rate(config, 0.5, 0, 100, 10) == doctest::Approx(0.5 / 20));
    CHECK(learning_rate(config, 0.5, 9, 100, 10) == doctest::Approx(0.25));
    CHECK(learning_rate(config, 0.5, 19, 100, 10) == doctest::Approx(0.5));
    CHECK(learning_rate(config, 0.5, 99, 100, 10) == doctest::Approx(0.5));
    config.warmup = 0.5;  // 1.5 steps of an epoch of 3
    for (const auto& [step, lr] : {std::pair(0, 1 / 1.5), {1, 1.0}, {2, 1.0}})
        CHECK(learning_rate(config, 1, step, 6, 3) == doctest::Approx(lr));
}

TEST_CASE("learning rate: cosine falls from the base to nothing, step by its factor") {
    Config config;
    config.warmup = 0;
    config.schedule = Schedule::kCosine;
    CHECK(learning_rate(config, 1, 0, 100, 10) == doctest::Approx(1));
    CHECK(learning_rate(config, 1, 50, 100, 10) == doctest::Approx(0.5));
    CHECK(learning_rate(config, 1, 100, 100, 10) == doctest::Approx(0));
    config.schedule = Schedule::kStep;
    config.step_epochs = 3, config.gamma = 0.1;
    CHECK(learning_rate(config, 1, 29, 100, 10) == doctest::Approx(1));
    CHECK(learning_rate(config, 1, 30, 100, 10) == doctest::Approx(0.1));
    CHECK(learning_rate(config, 1, 60, 100, 10) == doctest::Approx(0.01));
}

// What torch.optim.lr_scheduler.OneCycleLR(max_lr, total_steps, cycle_momentum=False) gives.
TEST_CASE("learning rate: onecycle has PyTorch's rates") {
    Config config;
    config.schedule = Schedule::kOneCycle;
    for (const auto& [step, want] : {std::pair{0, 0.04},
                                     {10, 0.29516394846410077},
                                     {29, 1.0},
                                     {30, 0.9994965352845243},
                                     {64, 0.500002},
                                     {99, 4e-6}})
        CHECK(learning_rate(config, 1, step, 100, 10) == doctest::Approx(want).epsilon(1e-9));
    CHECK(learning_rate(config, 0.2, 1, 7, 3) == doctest::Approx(0.19611132546699175));
    CHECK(learning_rate(config, 0.2, 0, 1, 1) <= 0.2);  // no division by a length of 0
}

TEST_CASE("base learning rate: grows with the global batch unless it was given") {
    Config config;
    config.batch = 256;
    CHECK(base_learning_rate(config, true) == doctest::Approx(0.1));
    config.batch = 512;
    CHECK(base_learning_rate(config, true) == doctest::Approx(0.2));
    CHECK(base_learning_rate(config, false) == doctest::Approx(0.04));
    config.lr = 0.3;
    CHECK(base_learning_rate(config, true) == 0.3);
}

// Three steps of the formula in double, row by row, beside the arenas.
TEST_CASE("optimizer: decays weights but not vectors, leaves frozen rows, updates statistics") {
    for (const char* which : {"sgd", "adamw"}) {
        CAPTURE(which);
        const auto backend = make_backend("cpu", {1});
        Params params;
        const auto row = [&](const char* name, Shape shape, bool decay, bool running, bool frozen) {
            Param param;
            param.name = name, param.shape = shape, param.decay = decay;
            param.running = running, param.frozen = frozen;
            param.init = {Init::kNormal, 1};
            params.add(param);
        };
        row("a.weight", {3, 1, 1, 5}, true, false, false);
        row("a.bias", {1, 1, 1, 3}, false, false, false);
        row("b.weight", {2, 1, 1, 3}, true, false, true);
        row("c.running_mean", {1, 1, 1, 4}, false, true, false);
        params.allocate(*backend, 7);
        Config config;
        set_option(config, "optimizer", which);
        config.weight_decay = 0.1;
        config.ema = 0.2;  // the second step may have 2/11, the third all
        Optimizer optimizer(config, params, *backend);

        std::map<std::string, std::vector<double>> w, m, v, mean;
        for (Param* p : params.all())
            w[p->name].assign(p->value.floats(), p->value.floats() + p->shape.elems()),
                m[p->name].assign(p->shape.elems(), 0), v[p->name].assign(p->shape.elems(), 0);
        const double lr = 0.05, count = 4;
        for (int t = 1; t <= 3; ++t) {
            for (Param* p : params.all()) {
                if (p->frozen) continue;
                const std::vector<float> g = random_floats(p->shape.elems(), uint64_t(t));
                std::copy(g.begin(), g.end(), p->grad.floats());
                for (size_t i = 0; i < g.size(); ++i) {
                    double &wi = w[p->name][i], &mi = m[p->name][i], &vi = v[p->name][i];
                    const double decay = p->decay ? 0.1 : 0, gi = g[i] / count;
                    if (p->running) {
                        wi = 0.9 * wi + 0.1 * gi;
                    } else if (config.optimizer == OptimizerKind::kSgd) {
                        const double full = gi + decay * wi;
                        mi = 0.9 * mi + full;
                        wi -= lr * mi;
                    } else {
                        wi -= lr * decay * wi;
                        mi = 0.9 * mi + 0.1 * gi;
                        vi = 0.999 * vi + 0.001 * gi * gi;
                        wi -= lr * mi / (1 - std::pow(0.9, t)) /
                              (std::sqrt(vi / (1 - std::pow(0.999, t))) + 1e-8);
                    }
                }
            }
            const double keep = t == 1 ? 0 : std::min(0.2, double(t) / (9 + t));
            for (auto& [name, values] : w) {
                mean[name].resize(values.size());
                for (size_t i = 0; i < values.size(); ++i)
                    mean[name][i] = keep * mean[name][i] + (1 - keep) * values[i];
            }
            params.block()->counters[StepCounters::kCount] = float(count);
            params.block()->state = optimizer.next(lr);
            optimizer.update();
            CHECK(params.block()->state.scale == 0.25f);
            ++optimizer.steps_done;
        }
        for (Param* p : params.all()) {
            CAPTURE(p->name);
            CHECK_CLOSE(std::span(p->value.floats(), p->shape.elems()), w[p->name], 2e-6);
        }
        optimizer.swap_average();
        for (Param* p : params.all()) {
            CAPTURE(p->name);
            CHECK_CLOSE(std::span(p->value.floats(), p->shape.elems()),
                        p->frozen ? w[p->name] : mean[p->name], 2e-6);
        }
    }
}

TEST_CASE(
    "optimizer: --lr-decay-layers divides the first layer's rate, evenly by depth up to the last") {
    const auto backend = make_backend("cpu", {1});
    Params params;
    for (size_t layer : {0, 2, 5})
        params.add({.name = cat("l", layer, ".bias"), .shape = {1, 1, 1, 3}, .layer = layer});
    params.allocate(*backend, 7);
    for (const char* which : {"sgd", "adamw"}) {
        Config config;
        set_option(config, "optimizer", which);
        config.lr_decay_layers = 4;
        Optimizer optimizer(config, params, *backend);
        for (Param* p : params.all())
            for (int i = 0; i < 3; ++i) p->grad.floats()[i] = 4, p->value.floats()[i] = 0;
        params.block()->counters[StepCounters::kCount] = 4;
        params.block()->state = optimizer.next(0.1);
        optimizer.update();
        CHECK(params.find("l5.bias")->value.floats()[1] == doctest::Approx(-0.1));
        CHECK(params.find("l2.bias")->value.floats()[1] == doctest::Approx(-0.05));
        CHECK(params.find("l0.bias")->value.floats()[1] == doctest::Approx(-0.025));
    }
}
