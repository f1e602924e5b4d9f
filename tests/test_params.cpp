// The arenas of src/model/params.h, and the start values in them.
#include "src/model/params.h"

#include <algorithm>
#include <cmath>

#include "src/base/random.h"
#include "tests/support.h"

using namespace convoy;

static Param make_param(const std::string& name, Shape shape, Init init = {}) {
    Param param;
    param.name = name;
    param.shape = shape;
    param.init = init;
    return param;
}

static std::vector<float> values(const Param* param) {
    return {param->value.floats(), param->value.floats() + param->shape.elems()};
}

TEST_CASE("the arenas hold trained params, then running statistics, then frozen params") {
    auto backend = make_backend("cpu");
    Params params;
    Param frozen = make_param("frozen", {1, 1, 1, 5}, {Init::kConstant, 2});
    frozen.frozen = true;
    params.add(frozen);
    params.add(make_param("a", {3, 1, 1, 7}, {Init::kConstant, 1}));
    Param mean = make_param("mean", {1, 1, 1, 5}),
          var = make_param("var", {1, 1, 1, 5}, {Init::kConstant, 1});
    mean.running = var.running = var.joined = true;
    params.add(mean);
    params.add(var);
    params.add(make_param("b", {1, 1, 1, 4}));
    params.allocate(*backend, 1);

    std::vector<std::string> names;
    for (Param* param : params.all()) {
        names.push_back(param->name);
        CHECK((param->joined || param->offset % 16 == 0));
        CHECK(param->value.data == params.weights + param->offset);
        CHECK(param->grad.data == (param->frozen ? nullptr : params.grads + param->offset));
    }
    CHECK(names == std::vector<std::string>{"a", "b", "mean", "var", "frozen"});
    CHECK(params.trained_size == 32 + 16);
    CHECK(params.updated_size == 48 + 16);  // two params of 5 without a gap between them
    CHECK(params.weights_size == 64 + 16);
    CHECK(params.grads_size == 64 + StepCounters::kSize);
    CHECK(params.counters() == params.grads + 64);
    CHECK(params.find("var")->offset == params.find("mean")->offset + 5);
    CHECK(params.model_elems() == 5 + 21 + 4);
    CHECK(params.trained_elems() == 21 + 4);
    CHECK(values(params.find("a")) == std::vector<float>(21, 1));
    CHECK(values(params.find("b")) == std::vector<float>(4, 0));
    CHECK(values(params.find("frozen")) == std::vector<float>(5, 2));
    CHECK(params.find("c") == nullptr);
}

TEST_CASE("a checksum tells every changed, moved or missing value") {
    std::vector<float> values(1003);
    for (size_t i = 0; i < values.size(); ++i) values[i] = float(i) * 0.25f;
    const uint64_t sum = checksum(values);
    CHECK(checksum(values) == sum);
    for (size_t i = 0; i + 1 < values.size(); ++i) {
        std::vector<float> other = values;
        other[i] = std::nextafter(other[i], 1e9f);
        REQUIRE(checksum(other) != sum);
        other = values;
        std::swap(other[i], other[(i + 4) % other.size()]);
        REQUIRE(checksum(other) != sum);
    }
    CHECK(checksum(std::span(values).first(1002)) != sum);
    std::vector<float> sign = {0.0f}, minus = {-0.0f};
    CHECK(checksum(sign) != checksum(minus));
}

TEST_CASE("a second param of the same name is refused") {
    Params params;
    params.add(make_param("a", {1, 1, 1, 1}));
    CHECK_THROWS_WITH_AS(params.add(make_param("a", {1, 1, 1, 2})), "two parameters are named 'a'",
                         Error);
}

TEST_CASE("start values are those of the formula, whatever the number of threads") {
    const int n = 300'001;
    for (Init init : {Init{Init::kNormal, 0.5f}, Init{Init::kUniform, 0.25f}}) {
        std::vector<float> one(n), three(n);
        draw_start_values(init, 0x123456789abcdefull, n, one.data(), 1);
        draw_start_values(init, 0x123456789abcdefull, n, three.data(), 3);
        CHECK(one == three);
        std::vector<double> want(n);
        for (int i = 0; i < n; ++i) {
            Random random(0x123456789abcdefull, 0, uint64_t(i / 4), kInit);
            float u[4];
            for (float& draw : u) draw = random.uniform();
            const int pair = i % 4 / 2 * 2;
            const double radius = std::sqrt(-2 * std::log(1 - double(u[pair])));
            const double angle = 2 * M_PI * double(u[pair + 1]);
            want[size_t(i)] = init.kind == Init::kUniform
                                  ? 0.25 * (2 * double(u[i % 4]) - 1)
                                  : 0.5 * radius * (i % 2 ? std::sin(angle) : std::cos(angle));
        }
        // 24 bits of a number that the normal distribution stretches to at most 5.8.
        CHECK_CLOSE(one, want, 2e-6);
    }
    // The smallest and the largest draw there can be give finite numbers: 1 − u of 1 and of 2^-24.
    std::vector<float> many(1 << 22);
    draw_start_values({Init::kNormal, 1}, 5, many.size(), many.data(), 2);
    CHECK(std::all_of(many.begin(), many.end(), [](float v) { return std::abs(v) < 5.8f; }));
}

TEST_CASE("start values have the deviation or bound that was asked for") {
    auto backend = make_backend("cpu");
    Params params;
    const int n = 200'003;  // not a multiple of a block, and more than one thread's share
    params.add(make_param("normal", {1, 1, 1, n}, {Init::kNormal, 0.5}));
    params.add(make_param("uniform", {1, 1, 1, n}, {Init::kUniform, 0.25}));
    params.allocate(*backend, 7);

    double sum = 0, squares = 0, fourth = 0, beyond = 0;
    for (float v : values(params.find("normal"))) {
        sum += v / 0.5, squares += std::pow(v / 0.5, 2), fourth += std::pow(v / 0.5, 4);
        beyond += std::abs(v) > 2 * 0.5;
    }
    // Each bound is five standard errors: 1/√n, √2/√n, √96/√n, √(p(1−p)/n).
    CHECK(std::abs(sum / n) < 5 * 0.00224);
    CHECK(std::abs(squares / n - 1) < 5 * 0.00316);
    CHECK(std::abs(fourth / n - 3) < 5 * 0.0219);
    CHECK(std::abs(beyond / n - 0.0455) < 5 * 0.00047);

    double low = 0, high = 0, mean = 0;
    for (float v : values(params.find("uniform")))
        low = std::min<double>(low, v), high = std::max<double>(high, v), mean += v;
    CHECK(low >= -0.25);
    CHECK(low < -0.2499);
    CHECK(high <= 0.25);
    CHECK(high > 0.2499);
    CHECK(std::abs(mean / n) < 5 * 0.25 / std::sqrt(3.0 * n));
}

TEST_CASE(
    "a param starts the same whatever else is in the model and however many threads fill it") {
    auto one = make_backend("cpu", {.threads = 1}), two = make_backend("cpu", {.threads = 2});
    Params alone, among, other_seed, other_name;
    const Init init{Init::kNormal, 1};
    alone.add(make_param("w", {1, 1, 1, 150'001}, init));
    alone.allocate(*one, 3);
    among.add(make_param("v", {1, 1, 1, 33}, init));
    among.add(make_param("w", {1, 1, 1, 150'001}, init));
    among.allocate(*two, 3);
    other_seed.add(make_param("w", {1, 1, 1, 150'001}, init));
    other_seed.allocate(*one, 4);
    other_name.add(make_param("u", {1, 1, 1, 150'001}, init));
    other_name.allocate(*one, 3);
    const std::vector<float> w = values(alone.find("w"));
    CHECK(w == values(among.find("w")));
    CHECK(w != values(other_seed.find("w")));
    CHECK(w != values(other_name.find("u")));
}
