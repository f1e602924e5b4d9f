// Start values and checksums of the arenas of src/model/params.h.
#include "src/model/params.h"

#include <algorithm>
#include <cmath>

#include "src/base/random.h"
#include "tests/support.h"

using namespace convoy;

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

TEST_CASE(
    "a param starts the same whatever else is in the model and however many threads fill it") {
    const auto start_of = [](std::vector<const char*> names, int threads, uint64_t seed) {
        const auto backend = make_backend("cpu", {.threads = threads});
        Params params;
        for (const char* name : names)
            params.add({.name = name, .shape = {1, 1, 1, 150'001}, .init = {Init::kNormal, 1}});
        params.allocate(*backend, seed);
        const float* values = params.find(names.back())->value.floats();
        return std::vector<float>(values, values + 150'001);
    };
    const std::vector<float> alone = start_of({"w"}, 1, 3);
    CHECK(start_of({"v", "w"}, 2, 3) == alone);
    CHECK(start_of({"w"}, 1, 4) != alone);
    CHECK(start_of({"u"}, 1, 3) != alone);
}
