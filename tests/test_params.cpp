// The arenas of src/params.h, and the start values in them.
#include "src/params.h"

#include <cmath>

#include "tests/support.h"

using namespace convoy;

static Param row(const std::string& name, Shape shape, Init init = {}) {
    Param param;
    param.name = name;
    param.shape = shape;
    param.init = init;
    return param;
}

static std::vector<float> values(const Param* row) {
    return {row->value.data, row->value.data + row->shape.elems()};
}

TEST_CASE("the arenas hold trained rows, then running statistics, then frozen rows") {
    auto backend = make_backend("cpu");
    Params params;
    Param frozen = row("frozen", {1, 1, 1, 5}, {Init::kConstant, 2});
    frozen.frozen = true;
    params.add(frozen);
    params.add(row("a", {3, 1, 1, 7}, {Init::kConstant, 1}));
    Param mean = row("mean", {1, 1, 1, 5}), var = row("var", {1, 1, 1, 5}, {Init::kConstant, 1});
    mean.running = var.running = var.joined = true;
    params.add(mean);
    params.add(var);
    params.add(row("b", {1, 1, 1, 4}));
    params.allocate(*backend, 1);

    std::vector<std::string> names;
    for (Param* row : params.rows()) {
        names.push_back(row->name);
        CHECK((row->joined || row->offset % 16 == 0));
        CHECK(row->value.data == params.weights + row->offset);
        CHECK(row->grad.data == (row->frozen ? nullptr : params.grads + row->offset));
    }
    CHECK(names == std::vector<std::string>{"a", "b", "mean", "var", "frozen"});
    CHECK(params.trained_size == 32 + 16);
    CHECK(params.updated_size == 48 + 16);  // two rows of 5 without a gap between them
    CHECK(params.weights_size == 64 + 16);
    CHECK(params.grads_size == 64 + Tail::kSize);
    CHECK(params.tail() == params.grads + 64);
    CHECK(params.find("var")->offset == params.find("mean")->offset + 5);
    CHECK(params.model_elems() == 5 + 21 + 4);
    CHECK(params.trained_elems() == 21 + 4);
    CHECK(values(params.find("a")) == std::vector<float>(21, 1));
    CHECK(values(params.find("b")) == std::vector<float>(4, 0));
    CHECK(values(params.find("frozen")) == std::vector<float>(5, 2));
    CHECK(params.find("c") == nullptr);
}

TEST_CASE("a second row of the same name is refused") {
    Params params;
    params.add(row("a", {1, 1, 1, 1}));
    CHECK_THROWS_WITH_AS(params.add(row("a", {1, 1, 1, 2})), "two parameters are named 'a'", Error);
}

TEST_CASE("start values have the deviation or bound that was asked for") {
    auto backend = make_backend("cpu");
    Params params;
    const int n = 200'003;  // not a multiple of a block, and more than one thread's share
    params.add(row("normal", {1, 1, 1, n}, {Init::kNormal, 0.5}));
    params.add(row("uniform", {1, 1, 1, n}, {Init::kUniform, 0.25}));
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

TEST_CASE("a row starts the same whatever else is in the model and however many threads fill it") {
    auto one = make_backend("cpu", {.threads = 1}), two = make_backend("cpu", {.threads = 2});
    Params alone, among, other_seed, other_name;
    const Init init{Init::kNormal, 1};
    alone.add(row("w", {1, 1, 1, 150'001}, init));
    alone.allocate(*one, 3);
    among.add(row("v", {1, 1, 1, 33}, init));
    among.add(row("w", {1, 1, 1, 150'001}, init));
    among.allocate(*two, 3);
    other_seed.add(row("w", {1, 1, 1, 150'001}, init));
    other_seed.allocate(*one, 4);
    other_name.add(row("u", {1, 1, 1, 150'001}, init));
    other_name.allocate(*one, 3);
    const std::vector<float> w = values(alone.find("w"));
    CHECK(w == values(among.find("w")));
    CHECK(w != values(other_seed.find("w")));
    CHECK(w != values(other_name.find("u")));
}
