#include <algorithm>

#include "src/step/grad_reducer.h"

#include "tests/support.h"

using namespace convoy;

namespace {

// Stands in for a ring: notes what it is handed, multiplies by the world at once.
class Recorder final : public Communicator {
 public:
    explicit Recorder(int world) : Communicator(0, world) {}
    std::future<void> allreduce_sum(std::span<float> data) override {
        if (refuse_at == int(slices.size())) throw Error("the copy failed");
        slices.push_back(data);
        if (late) return std::async(std::launch::deferred, [this] { ++ended; });
        for (float& x : data) x *= float(world());
        return done();
    }

    std::vector<std::span<float>> slices;
    int refuse_at = -1;
    bool late = false;  // sums end when they are waited for
    int ended = 0;      // of those
};

struct Arena {
    std::unique_ptr<Backend> backend = make_backend("cpu", {1});
    Params params;

    Arena() {
        const auto row = [&](const std::string& name, int elems, bool running) {
            Param param;
            param.name = name, param.shape = {1, 1, 1, elems}, param.running = running;
            params.add(param);
        };
        for (int i = 0; i < 10; ++i) row(cat("row", i), 100 + i, false);
        row("running", 50, true);
        params.allocate(*backend, 1);
    }
    std::vector<Param*> trained() {
        std::vector<Param*> rows = params.all();
        std::erase_if(rows, [](Param* row) { return row->running; });
        return rows;
    }
    void set_gradients() {
        for (size_t i = 0; i < params.grads_size; ++i) params.grads[i] = float(i);
    }
};

}  // namespace

TEST_CASE_FIXTURE(Arena,
                  "reducer: every float of the arena is summed exactly once, back to front") {
    for (size_t bucket_bytes : {size_t(1), size_t(1000), size_t(1) << 30}) {
        CAPTURE(bucket_bytes);
        Recorder ring(3);
        GradReducer reducer(params, *backend, ring, {}, bucket_bytes);
        set_gradients();
        reducer.start();
        std::vector<Param*> rows = trained();
        for (auto row = rows.rbegin(); row != rows.rend(); ++row) reducer.ready(**row);
        reducer.finish();
        for (size_t i = 0; i < params.grads_size; ++i) REQUIRE(params.grads[i] == 3 * float(i));
        const float* end = params.grads + params.grads_size;
        for (std::span<float> slice : ring.slices) {
            CHECK(slice.data() + slice.size() == end);
            end = slice.data();
        }
        CHECK(end == params.grads);
        // Ten rows, and before them statistics and counters.
        if (bucket_bytes == 1) CHECK(ring.slices.size() == 11);
        CHECK(ring.slices[0].size_bytes() <= Communicator::kExactBytes);
    }
}

TEST_CASE_FIXTURE(Arena, "reducer: a bucket leaves as soon as its rows are ready, not before") {
    Recorder ring(2);
    GradReducer reducer(params, *backend, ring, {}, 4);
    set_gradients();
    reducer.start();
    CHECK(ring.slices.size() == 1);  // statistics and counters
    std::vector<Param*> rows = trained();
    reducer.ready(*rows[9]);
    CHECK(ring.slices.size() == 2);
    reducer.ready(*rows[7]);  // before its turn: it waits, since the order is the same on all ranks
    CHECK(ring.slices.size() == 2);
    reducer.ready(*rows[8]);
    CHECK(ring.slices.size() == 4);
    reducer.finish();
    CHECK(ring.slices.size() == 11);
}

TEST_CASE_FIXTURE(Arena, "reducer: memory is not given back before every sum has ended") {
    for (const bool in_finish : {false, true}) {
        CAPTURE(in_finish);
        Recorder ring(2);
        ring.late = true, ring.refuse_at = 3;
        const auto step = [&] {
            GradReducer reducer(params, *backend, ring, {}, 4);
            reducer.start();
            std::vector<Param*> rows = trained();
            for (int row = 9; row >= (in_finish ? 8 : 7); --row) reducer.ready(*rows[size_t(row)]);
            reducer.finish();
        };
        CHECK_THROWS_WITH_AS(step(), "the copy failed", Error);
        CHECK(ring.slices.size() == 3);
        CHECK(ring.ended == 3);
    }
}

namespace {

// conv 40 | first 30→20 with bias | norm 8 | second 20→3 without
struct LinearArena {
    std::unique_ptr<Backend> backend = make_backend("cpu", {1});
    Params params;

    LinearArena() {
        const auto row = [&](const char* name, Shape shape, int dims) {
            Param param;
            param.name = name, param.shape = shape, param.dims = dims, param.is_linear = dims == 2;
            params.add(param);
        };
        row("conv.weight", {4, 1, 1, 10}, 4);
        row("first.weight", {20, 1, 1, 30}, 2);
        row("first.bias", {1, 1, 1, 20}, 1);
        row("norm.weight", {1, 1, 1, 8}, 1);
        row("second.weight", {3, 1, 1, 20}, 2);
        params.allocate(*backend, 1);
    }
    std::vector<bool> used(int64_t batch, RingSize world, FactorMode mode) {
        std::vector<bool> list;
        for (const FactorChoice& choice : choose_factors(params, batch, world, mode))
            list.push_back(choice.use);
        return list;
    }
};

}  // namespace

TEST_CASE_FIXTURE(LinearArena, "factors are chosen layer by layer, where they are fewer bytes") {
    // first: 2·(20·30 + 20) = 1240 against B·50 floats; second: 2·60 = 120 against B·23.
    CHECK(used(24, {4}, FactorMode::kAuto) == std::vector<bool>{true, false});
    CHECK(used(25, {4}, FactorMode::kAuto) == std::vector<bool>{false, false});
    CHECK(used(5, {4}, FactorMode::kAuto) == std::vector<bool>{true, true});
    CHECK(used(6, {4}, FactorMode::kAuto) == std::vector<bool>{true, false});
    CHECK(used(1000, {2}, FactorMode::kOn) == std::vector<bool>{true, true});
    CHECK(used(1, {2}, FactorMode::kOff) == std::vector<bool>{false, false});
    CHECK(used(1, {1}, FactorMode::kOn) == std::vector<bool>{false, false});
    // Where a sum goes around two hosts of two ranks it is 1 in place of 3/2 of its bytes; factors
    // stay 3/4 of theirs. In memory that all share a sum sends nothing.
    CHECK(used(16, {4, 2}, FactorMode::kAuto) == std::vector<bool>{true, false});
    CHECK(used(17, {4, 2}, FactorMode::kAuto) == std::vector<bool>{false, false});
    CHECK(used(1, {4, 1}, FactorMode::kAuto) == std::vector<bool>{false, false});
    CHECK(used(1, {4, 1}, FactorMode::kOn) == std::vector<bool>{true, true});
    const FactorChoice first = choose_factors(params, 10, {4}, FactorMode::kAuto)[0];
    CHECK(first.dense_bytes == doctest::Approx(2 * 3 / 4. * 4 * 620));
    CHECK(first.factor_bytes == doctest::Approx(3 / 4. * 4 * 10 * 50));
    // 10,000 images of both: 3/4 · 4 · 1e4 · 50 bytes against 2 · 3/4 · 4 · 620.
    const auto all = choose_factors(params, 10'000, {4}, FactorMode::kOn);
    const std::string fp32 = traffic_text(params, all, {4}, false),
                      bf16 = traffic_text(params, all, {4}, true);
    const auto has = [](const std::string& text, std::initializer_list<const char*> parts) {
        return std::ranges::all_of(parts, [&](const char* part) { return contains(text, part); });
    };
    CHECK(has(fp32, {"2.2 MB", "first 1.5 MB", "second 0.7 MB"}));
    CHECK(has(bf16, {"1.1 MB", "first 0.8 MB", "second 0.3 MB"}));
    const RingSize shared = {4, 1}, hosts = {4, 2};
    CHECK(has(
        traffic_text(params, choose_factors(params, 10, shared, FactorMode::kAuto), shared, false),
        {"this host"}));
    CHECK(has(
        traffic_text(params, choose_factors(params, 17, hosts, FactorMode::kAuto), hosts, false),
        {"0.0 MB", "host"}));
}
