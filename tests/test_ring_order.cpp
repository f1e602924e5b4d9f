// The order of the ring: tours against links done by hand, the order asked for and kept through
// generations, and hosts whose cables differ.
#include "src/plan/ring_order.h"

#include <set>

#include "net/roster.h"
#include "tests/hosts.h"
#include "tests/net_support.h"
#include "tests/process.h"

using namespace convoy;

TEST_CASE("ring order: the fastest tour leaves out the slow links where it can") {
    LinkSpeeds speeds(4);
    for (int a = 0; a < 4; ++a)
        for (int b = 0; b < a; ++b) speeds.measured(a, b, 100);
    speeds.measured(0, 1, 10);
    speeds.measured(2, 3, 20);
    CHECK(speeds.at(1, 0) == 10);  // the slower direction counts
    CHECK(fastest_tour(speeds) == std::vector<int>{0, 2, 1, 3});
    CHECK(speeds.slowest({0, 2, 1, 3}) == 100);
    CHECK(speeds.slowest({0, 1, 2, 3}) == 10);
    // All links of host 2 are slow: none can do without two of them, the others are fast.
    LinkSpeeds slow_host(5);
    for (int a = 0; a < 5; ++a)
        for (int b = 0; b < a; ++b) slow_host.measured(a, b, a == 2 || b == 2 ? 5 + a + b : 100);
    slow_host.measured(0, 1, 50);
    // Its fastest links lead to 4 and 3: the tour takes both.
    const std::vector<int> tour = fastest_tour(slow_host);
    CHECK(slow_host.slowest(tour) == 10);
}

TEST_CASE("ring order: the tour is the best of all, by another way of trying them") {
    for (int seed = 1; seed <= 20; ++seed) {
        const int n = 4 + seed % 4;
        LinkSpeeds speeds{size_t(n)};
        uint32_t state = uint32_t(seed);
        for (int a = 0; a < n; ++a)
            for (int b = 0; b < a; ++b)
                speeds.measured(a, b, 1 + double((state = state * 1664525 + 1013904223) >> 24));
        // The largest threshold whose links still have a tour: depth first.
        std::function<bool(std::vector<int>&, double)> closes = [&](std::vector<int>& path,
                                                                    double least) {
            if (int(path.size()) == n) return speeds.at(path.back(), path[0]) >= least;
            for (int next = 1; next < n; ++next) {
                if (std::ranges::find(path, next) != path.end() ||
                    speeds.at(path.back(), next) < least)
                    continue;
                path.push_back(next);
                const bool closed = closes(path, least);
                path.pop_back();
                if (closed) return true;
            }
            return false;
        };
        double best = 0;
        for (int a = 0; a < n; ++a)
            for (int b = 0; b < a; ++b) {
                std::vector<int> path{0};
                if (speeds.at(a, b) > best && closes(path, speeds.at(a, b))) best = speeds.at(a, b);
            }
        CHECK(speeds.slowest(fastest_tour(speeds)) == best);
    }
}

TEST_CASE("ring order: a few rings go over every link once") {
    for (int n = 4; n <= int(kMostHosts); ++n) {
        LinkSpeeds speeds{size_t(n)};
        int rings = 0;
        for (;; ++rings) {
            const std::vector<int> tour = exploring_tour(speeds);
            CHECK(std::set<int>(tour.begin(), tour.end()).size() == size_t(n));
            if (speeds.unknown(tour) == 0) break;
            for (int i = 0; i < n; ++i)
                speeds.measured(tour[size_t(i)], tour[size_t((i + 1) % n)], 1);
        }
        CAPTURE(n);
        CHECK(rings >= n / 2);
        CHECK(rings <= n / 2 + 1);
    }
}

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

TEST_CASE("program: a ring of hosts whose cables differ takes the order without the slow ones") {
    Hosts hosts(4);
    if (!hosts.made()) return;
    // Between hosts 1 and 2, and 3 and 4, cables of 20 Mbit/s that their routes take.
    for (const int one : {1, 3}) {
        const int other = one + 1;
        REQUIRE(hosts.cable(one, other, "slow"));
        for (const auto& [here, there] : {std::pair(one, other), std::pair(other, one)}) {
            REQUIRE(hosts.run(
                here, "tc qdisc add dev slow root tbf rate 20mbit burst 96kb latency 50ms"));
            REQUIRE(hosts.run(
                here, cat("ip route add 10.77.0.", there, "/32 dev slow src 10.77.0.", here)));
        }
    }
    const TempDir dir;
    std::vector<std::thread> ranks;
    std::array<bool, 4> ended{};
    for (int rank = 0; rank < 4; ++rank)
        ranks.emplace_back([&, rank] {
            ended[size_t(rank)] = hosts.run(
                rank + 1,
                cat("timeout 100 ", trainer_path(), " --coord 10.77.0.1:29400 --open --rank ", rank,
                    rank == 0
                        ? " --world 4 --generated 96 --size 16 --batch 32 --epochs 1 --shm off"
                        : "",
                    " --threads 1 --decode-threads 1 --out ", dir / cat("run", rank)),
                dir / cat("said", rank));
        });
    for (std::thread& rank : ranks) rank.join();
    const std::string said = read_file(dir / "said0");
    CAPTURE(said);
    for (const bool ok : ended) CHECK(ok);
    CHECK(said.find("links differ (") != std::string::npos);
    CHECK((said.find("the ring goes by ranks 0, 2, 1, 3: its slowest link carries ") !=
           std::string::npos) == true);
    CHECK(said.find("done: 3 steps") != std::string::npos);
}
