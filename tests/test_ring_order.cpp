// The order of the ring that rank 0 asks for, kept through generations.
#include <set>

#include "net/roster.h"
#include "tests/net_support.h"

using namespace convoy;

TEST_CASE("ring order: the order asked for, with the ranks of a host together") {
    const std::vector<wire::Member> peers = {
        {"a", "", 1}, {"b", "", 2}, {"a", "", 3}, {"c", "", 4}};
    CHECK(ring_order(peers, {0, 1, 2, 3}) == std::vector<int>{0, 2, 1, 3});
    CHECK(ring_order(peers, {3, 1, 2, 0}) == std::vector<int>{3, 1, 2, 0});
    CHECK(ring_order(peers, {2, 3, 0, 1}) == std::vector<int>{2, 0, 3, 1});
}

namespace {

// The edges of the ring, each with the smaller rank first.
std::set<std::pair<int, int>> edges_of(Communicator& ring) {
    std::set<std::pair<int, int>> edges;
    for (const EdgeTiming& edge : ring.measure_edges())
        edges.insert(std::minmax(edge.from, edge.to));
    return edges;
}

}  // namespace

TEST_CASE("ring order: rank 0 asks for one, and it stays when a rank is lost") {
    const auto work = [](Job& job) {
        Communicator& ring = *job.communicator;
        const int me = ring.rank();
        const auto regroup = [&](int64_t step, std::vector<int> wish) {
            try {
                ring.barrier();
            } catch (const RingBroken&) {
                // By one that came out of it earlier.
            }
            return ring.regroup(step, true, std::move(wish));
        };
        using Edges = std::set<std::pair<int, int>>;
        CHECK(edges_of(ring) == Edges{{0, 1}, {1, 2}, {2, 3}, {3, 4}, {0, 4}});
        regroup(1, me == 0 ? std::vector{0, 2, 4, 1, 3} : std::vector<int>{});
        CHECK(ring.rank() == me);
        CHECK(edges_of(ring) == Edges{{0, 2}, {2, 4}, {1, 4}, {1, 3}, {0, 3}});
        std::vector<float> data(10'000, float(me + 1));
        ring.allreduce_sum(data).get();
        CHECK(data[9'999] == 15);
        // No order of these ranks: as it was. Another rank is not asked.
        regroup(2, me == 0 ? std::vector{0, 2, 4, 1, 1} : std::vector{4, 3, 2, 1, 0});
        CHECK(edges_of(ring) == Edges{{0, 2}, {2, 4}, {1, 4}, {1, 3}, {0, 3}});
        if (me == 4) {
            job.communicator.reset();
            fail("rank 4 is gone");
        }
        CHECK_THROWS_AS(ring.barrier(), RingBroken);
        ring.regroup(2, false);
        CHECK(edges_of(ring) == Edges{{0, 2}, {1, 2}, {1, 3}, {0, 3}});
    };
    CHECK_THROWS_WITH_AS(run_ranks(
                             5, [](JoinOptions& options) { options.elastic = true; }, work),
                         "rank 4 is gone", Error);
}
