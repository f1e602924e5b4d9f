#include "net/control/roster.h"

#include <algorithm>

#include "tests/support.h"

namespace convoy {

static wire::Join join_of(int rank, int world, const std::string& host,
                          const std::string& address) {
    static uint64_t processes = 0;
    return {rank, world, 1000, {}, host, address, ++processes};
}

TEST_CASE("a roster says who is missing") {
    Roster roster(0, 1);
    roster.add(0, join_of(1, 0, "b", "b:1"));
    CHECK(roster.status() == "1 joined, but none has said --world");
    roster.add(1, join_of(0, 4, "a", "a:1"));
    CHECK(roster.status() == "2 of 4 joined, missing rank 2-3");
    roster.add(2, join_of(-1, 0, "c", "c:1"));
    CHECK(roster.status() == "3 of 4 joined, missing 1 more");
    roster.remove(2);
    CHECK(roster.status() == "2 of 4 joined, missing rank 2-3");
}

TEST_CASE("a member that claims to be the process of another is refused") {
    Roster roster(3, 1);
    wire::Join join = join_of(0, 3, "a", "a:1");
    roster.add(0, join);
    join.rank = 1, join.address = "b:1";
    const auto refused = roster.add(1, join);
    REQUIRE(refused.size() == 1);
    CHECK(refused[0].why == "rank 1 (b:1) says that it is the process at a:1");
}

TEST_CASE("a member that says another world, or wants a rank outside of it, is refused") {
    Roster roster(0, 1);
    roster.add(0, join_of(0, 4, "a", "a:1"));
    auto refused = roster.add(1, join_of(1, 3, "b", "b:1"));
    REQUIRE(refused.size() == 1);
    CHECK(refused[0].why == "rank 1 (b:1) says --world 3, rank 0 (a:1) says --world 4");
    refused = roster.add(2, join_of(4, 0, "c", "c:1"));
    REQUIRE(refused.size() == 1);
    CHECK(refused[0].why == "rank 4 (c:1) cannot be in a world of 4: its ranks are 0 to 3");
    // The word of rank 0 holds also when it comes last.
    Roster late(0, 1);
    CHECK(late.add(0, join_of(1, 3, "b", "b:1")).empty());
    refused = late.add(1, join_of(0, 4, "a", "a:1"));
    REQUIRE(refused.size() == 1);
    CHECK(refused[0].id == 0);
}

TEST_CASE("members without a wish get the free ranks, and the ring keeps hosts together") {
    const wire::Join server = join_of(-1, 0, "a", "a:1");
    Roster roster(5, server.process);
    roster.add(10, join_of(-1, 0, "b", "b:1"));
    roster.add(11, join_of(-1, 0, "c", "c:1"));
    roster.add(12, join_of(3, 0, "b", "b:2"));
    roster.add(13, server);
    roster.add(14, join_of(-1, 0, "c", "c:2"));
    REQUIRE(roster.complete());
    const Roster::Assignment assignment = roster.assign_ranks();
    CHECK(assignment.ids[0] == 13);
    CHECK(assignment.ids[3] == 12);
    std::vector<int> ids = assignment.ids;
    std::sort(ids.begin(), ids.end());
    CHECK(ids == std::vector{10, 11, 12, 13, 14});
    int changes = 0;
    for (size_t i = 0; i < 5; ++i)
        changes += assignment.welcome.peers[size_t(assignment.welcome.ring[i])].host !=
                   assignment.welcome.peers[size_t(assignment.welcome.ring[(i + 1) % 5])].host;
    CHECK(changes == 3);  // three hosts, each entered once
}

TEST_CASE("ring order: the order asked for, with the ranks of a host together") {
    const std::vector<wire::Member> peers = {
        {"a", "", 1}, {"b", "", 2}, {"a", "", 3}, {"c", "", 4}};
    CHECK(ring_order(peers, {0, 1, 2, 3}) == std::vector<int>{0, 2, 1, 3});
    CHECK(ring_order(peers, {3, 1, 2, 0}) == std::vector<int>{3, 1, 2, 0});
    CHECK(ring_order(peers, {2, 3, 0, 1}) == std::vector<int>{2, 0, 3, 1});
}

}  // namespace convoy
