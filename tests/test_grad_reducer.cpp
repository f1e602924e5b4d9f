#include "src/grad_reducer.h"

#include "tests/support.h"

using namespace convoy;

namespace {

// Stands in for a ring: notes what it is handed, multiplies by the world at once.
class Recorder final : public Communicator {
 public:
    explicit Recorder(int world) : world_(world) {}
    int rank() const override { return 0; }
    int world() const override { return world_; }
    std::future<void> allreduce_sum(std::span<float> data) override {
        std::promise<void> promise;
        if (fail_at == int(slices.size()))
            promise.set_exception(std::make_exception_ptr(Error("rank 1 was lost")));
        else
            promise.set_value();
        slices.push_back(data);
        for (float& x : data) x *= float(world_);
        return promise.get_future();
    }
    std::future<void> gather(std::vector<std::span<float>>) override {
        std::promise<void> promise;
        promise.set_value();
        return promise.get_future();
    }
    void broadcast(std::span<std::byte>, int) override {}
    std::vector<std::vector<std::byte>> allgather(std::span<const std::byte>) override {
        return {};
    }
    void barrier() override {}
    std::vector<EdgeTiming> measure_edges() override { return {}; }
    void set_progress(int64_t, const char*) override {}
    void abort(const std::string&) noexcept override {}
    void leave() noexcept override {}
    int lost_rank() const override { return -1; }
    uint64_t bytes_sent() const override { return 0; }

    std::vector<std::span<float>> slices;
    int fail_at = -1;

 private:
    int world_;
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
        std::vector<Param*> rows = params.rows();
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
        GradReducer reducer(params, *backend, ring, bucket_bytes);
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
        // Ten rows, and before them statistics and tail.
        if (bucket_bytes == 1) CHECK(ring.slices.size() == 11);
        CHECK(ring.slices[0].size_bytes() <= Communicator::kExactBytes);
    }
}

TEST_CASE_FIXTURE(Arena, "reducer: a bucket leaves as soon as its rows are ready, not before") {
    Recorder ring(2);
    GradReducer reducer(params, *backend, ring, 4);
    set_gradients();
    reducer.start();
    CHECK(ring.slices.size() == 1);  // statistics and tail
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

TEST_CASE_FIXTURE(Arena, "reducer: a rank with nothing to train hands over the same slices") {
    Recorder busy(2), idle(2);
    for (Recorder* ring : {&busy, &idle}) {
        GradReducer reducer(params, *backend, *ring, 900);
        reducer.start();
        std::vector<Param*> rows = trained();
        if (ring == &busy)
            for (auto row = rows.rbegin(); row != rows.rend(); ++row) reducer.ready(**row);
        reducer.finish();
    }
    REQUIRE(busy.slices.size() == idle.slices.size());
    for (size_t i = 0; i < busy.slices.size(); ++i) {
        CHECK(busy.slices[i].data() == idle.slices[i].data());
        CHECK(busy.slices[i].size() == idle.slices[i].size());
    }
}

TEST_CASE_FIXTURE(Arena,
                  "reducer: a lost peer is thrown by finish, and the next step starts anew") {
    Recorder ring(2);
    GradReducer reducer(params, *backend, ring, 4);
    ring.fail_at = 3;
    reducer.start();
    CHECK_THROWS_WITH_AS(reducer.finish(), doctest::Contains("rank 1 was lost"), Error);
    ring.slices.clear();
    ring.fail_at = -1;
    reducer.start();
    CHECK_NOTHROW(reducer.finish());
    CHECK(ring.slices.size() == 11);
}

TEST_CASE_FIXTURE(Arena, "reducer: a job of one rank sends nothing") {
    Recorder ring(1);
    GradReducer reducer(params, *backend, ring, 4);
    reducer.start();
    reducer.finish();
    CHECK(ring.slices.empty());
}
