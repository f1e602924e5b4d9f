// Placing of buffers, src/model/memory_plan.h.
#include "src/model/memory_plan.h"

#include <set>

#include "src/base/random.h"
#include "src/model/model.h"
#include "tests/support.h"

using namespace convoy;

namespace {
struct Life {
    Value value;
    int birth, death;
};
}  // namespace

TEST_CASE("buffers that live at the same time never overlap, in random plans") {
    auto backend = make_backend("cpu");
    for (uint64_t seed = 0; seed < 60; ++seed) {
        CAPTURE(seed);
        Random random(seed, 0, 0, kTest);
        MemoryPlan plan;
        std::vector<Life> lives;
        const int ticks = 3 + int(random.below(40));
        for (int now = 1; now <= ticks; ++now) {
            plan.op({});
            for (uint64_t i = random.below(4); i > 0; --i) {
                const Shape shape{int(random.below(5)), 1 + int(random.below(9)), 3, 7};
                lives.push_back({plan.make(shape), now, now});
            }
            for (Life& life : lives)
                if (random.below(5) == 0) plan.use(life.value), life.death = now;
        }
        plan.place(*backend);

        size_t sum = 0;
        for (const Life& a : lives) {
            sum += (a.value.shape.elems() + 15) / 16 * 64;
            const float* begin = a.value.first(a.value.shape.N).floats();
            CHECK(reinterpret_cast<uintptr_t>(begin) % 64 == 0);
            for (const Life& b : lives) {
                if (&a == &b || a.death < b.birth || b.death < a.birth) continue;
                const bool apart =
                    begin + a.value.shape.elems() <= b.value.first(b.value.shape.N).floats() ||
                    b.value.first(b.value.shape.N).floats() + b.value.shape.elems() <= begin;
                CHECK((apart || a.value.shape.elems() == 0 || b.value.shape.elems() == 0));
            }
        }
        CHECK(plan.block_bytes() <= sum);
    }
}

TEST_CASE("a chain of equal buffers, each read by the next, needs two places") {
    auto backend = make_backend("cpu");
    MemoryPlan plan;
    Value before = plan.make({1, 1, 1, 160});
    for (int i = 0; i < 9; ++i) {
        plan.op({});
        plan.use(before);
        before = plan.make({1, 1, 1, 160});
    }
    plan.place(*backend);
    CHECK(plan.block_bytes() == 2 * 640);
}

TEST_CASE("a value that is not planned has no place, and planning ends with place()") {
    auto backend = make_backend("cpu");
    MemoryPlan plan;
    const Value mine = plan.make({1, 1, 1, 1});
    plan.use(Value{});
    CHECK_THROWS_AS(mine.first(1), Error);
    plan.place(*backend);
    CHECK(!Value{}.first(1));
    CHECK(mine.first(1));
    CHECK_THROWS_AS(plan.make({1, 1, 1, 1}), Error);
}
