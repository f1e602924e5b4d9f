#include "net/control/stall.h"

#include "tests/support.h"

namespace convoy {

static std::vector<wire::Member> members(const std::vector<std::string>& addresses) {
    std::vector<wire::Member> all;
    for (const std::string& address : addresses) all.push_back({"", address, 0, int(all.size())});
    return all;
}

using std::chrono::seconds;

// Heartbeats are {step, begun, done, moved, phase_ms, phase}.

TEST_CASE("the one who has not come to the collective is named, with phase and time") {
    const auto start = Clock::now();
    StallWatch watch(members({"a:1", "b:1", "c:1"}), seconds(30), start);
    for (int s = 0; s <= 29; ++s) {
        watch.heard(0, {812, 5, 4, 0, 0, "reduce"}, start + seconds(s));
        watch.heard(1, {812, 5, 4, 0, 0, "reduce"}, start + seconds(s));
        watch.heard(2, {812, 4, 4, 0, uint32_t(1000 * (s + 10)), "data"}, start + seconds(s));
        CHECK_FALSE(watch.report(start + seconds(s)));
    }
    const auto report = watch.report(start + seconds(31));
    REQUIRE(report);
    CHECK(*report == "step 812: all wait for rank 2 (c:1), in data since 41 s");
    CHECK_FALSE(watch.report(start + seconds(32)));  // said once, then at twice the time
    CHECK(watch.report(start + seconds(62)));
}

TEST_CASE("bytes that move, and long computing that nobody waits for, are no stall") {
    const auto start = Clock::now();
    StallWatch watch(members({"a:1", "b:1"}), seconds(30), start);
    for (int s = 0; s < 300; s += 10) {
        watch.heard(0, {1, 5, 4, uint64_t(s) * 1000, 0, "reduce"}, start + seconds(s));
        watch.heard(1, {1, 5, 4, uint64_t(s) * 1000, 0, "reduce"}, start + seconds(s));
        CHECK_FALSE(watch.report(start + seconds(s)));
    }
    for (int s = 300; s < 900; s += 10) {
        watch.heard(0, {2, 5, 5, 0, 0, "forward"}, start + seconds(s));
        watch.heard(1, {2, 5, 5, 0, 0, "forward"}, start + seconds(s));
        CHECK_FALSE(watch.report(start + seconds(s)));
    }
}

TEST_CASE(
    "when all are in the same collective the network is to blame, and a silent rank is told") {
    const auto start = Clock::now();
    StallWatch stuck(members({"a:1", "b:1"}), seconds(30), start);
    for (int s = 0; s <= 31; ++s)
        for (int rank : {0, 1}) stuck.heard(rank, {3, 5, 4, 0, 0, "reduce"}, start + seconds(s));
    auto report = stuck.report(start + seconds(32));
    REQUIRE(report);
    CHECK(contains(*report, "check the network"));

    StallWatch inside(members({"a:1", "b:1"}), seconds(30),
                      start);  // of the collective, and stopped there
    inside.heard(1, {3, 5, 4, 0, 0, "reduce"}, start);
    for (int s = 0; s <= 31; ++s) inside.heard(0, {3, 5, 4, 0, 0, "reduce"}, start + seconds(s));
    report = inside.report(start + seconds(32));
    REQUIRE(report);
    CHECK(contains(*report, "rank 1 (b:1), last heard of 32.0 s ago, at step 3 in reduce"));

    StallWatch stopped(members({"a:1", "b:1"}), seconds(30), start);
    stopped.heard(1, {3, 4, 4, 0, 0, "forward"}, start);
    for (int s = 0; s <= 31; ++s) stopped.heard(0, {3, 5, 4, 0, 0, "reduce"}, start + seconds(s));
    report = stopped.report(start + seconds(32));
    REQUIRE(report);
    CHECK(contains(*report, "rank 1 (b:1), last heard of 32.0 s ago, at step 3 in forward"));
}

TEST_CASE(
    "where ranks wait for each other's answers, those that do not wait or speak are to blame") {
    const auto start = Clock::now(), end = start + seconds(31);
    const auto late = [&](std::vector<wire::Heartbeat> beats, int silent) {
        StallWatch watch(members({"a:1", "b:1", "c:1"}), seconds(30), start);
        for (int s = 0; s <= 30; ++s)
            for (int rank = 0; rank < 3; ++rank)
                if (s == 0 || rank != silent)
                    watch.heard(rank, beats[size_t(rank)], start + seconds(s));
        return watch.waited_for(end);
    };
    // Stages, and workers of a server, begin different numbers of waits.
    CHECK(late({{1, 3, 2, 0, 0, "forward"}, {1, 9, 9, 0, 0, "forward"}, {1, 4, 3, 0, 0, "forward"}},
               -1) == std::vector{1});
    CHECK(late({{1, 3, 2, 0, 0, "reduce"}, {1, 9, 8, 0, 0, "reduce"}, {1, 4, 3, 0, 0, "reduce"}},
               1) == std::vector{1});
    CHECK(late({{1, 3, 3, 0, 0, "reduce"}, {1, 3, 3, 0, 0, "reduce"}, {1, 4, 3, 0, 0, "reduce"}},
               -1) == std::vector{0, 1});
}

}  // namespace convoy
