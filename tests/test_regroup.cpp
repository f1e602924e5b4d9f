// Who goes on after a ring broke, in virtual time: no sockets, no clock.
#include "net/control/regroup.h"

#include "net/control/pause.h"
#include "tests/support.h"

using namespace convoy;
using Verdict = Regroup::Verdict;

static const Clock::time_point kStart{};

struct Group : Regroup {
    Group(const wire::Welcome& ring) : Regroup(ring, "the ring broke", kStart), world(ring.world) {}
    // With the generation of the last ring that was open to the rank, and what it was READY for.
    void back(int rank, int64_t step, bool planned = false, uint32_t open = 1,
              std::vector<wire::RingId> maybe_open = {}) {
        wire::Join join;
        join.step = step, join.why = planned ? "" : "a link broke";
        join.open = 100 + open, join.open_generation = open, join.maybe_open = maybe_open;
        Regroup::back(rank, join);
    }
    int world;
};

// Process 1 has rank 0, and so on.
static wire::Welcome ring(std::vector<uint64_t> processes, uint32_t generation = 1,
                          wire::Rules rules = {}) {
    wire::Welcome ring{.generation = generation, .rules = rules, .id = 100 + generation};
    for (const uint64_t process : processes)
        ring.peers.push_back({"", cat("h", process), process, int(process) - 1});
    ring.world = int(processes.size());
    return ring;
}

static Group members(int world, wire::Rules rules = {}) {
    std::vector<uint64_t> processes;
    for (int rank = 0; rank < world; ++rank) processes.push_back(uint64_t(rank + 1));
    return ring(processes, 1, rules);
}

// Who is back is heard of meanwhile.
static Verdict at(Group& group, double seconds, std::string* why = nullptr) {
    std::string text;
    const auto then = kStart + std::chrono::milliseconds(int64_t(seconds * 1000));
    for (int rank = 0; rank < group.world; ++rank)
        if (!group.waits_for(rank)) group.heard(rank, then);
    return group.verdict(then, why ? *why : text);
}

TEST_CASE(
    "regroup: certain death needs no patience, silence 3 s, and signs of life are waited for") {
    Group group = members(3);
    group.back(0, 811);
    group.back(1, 810);
    CHECK(at(group, 2.9) == Verdict::wait);
    Group certain = group;
    certain.cut(2, "connection closed");
    CHECK(at(certain, 0) == Verdict::wait);
    certain.gone(2, "redial refused", kStart);
    CHECK(at(certain, 0) == Verdict::form);
    CHECK(certain.members() == std::vector{0, 1});
    CHECK(certain.news() ==
          "rank 2 (h3) lost: connection closed, redial refused; 2 ranks, step 812 redone");
    CHECK(at(group, 3) == Verdict::form);
    CHECK(group.news() == "rank 2 (h3) lost: no sign of life for 3 s; 2 ranks, step 812 redone");
    group.heard(2, kStart + std::chrono::seconds(2));
    CHECK(at(group, 4.9) == Verdict::wait);
    CHECK(at(group, 5) == Verdict::form);
    group.doubt(kStart + std::chrono::seconds(60));  // this process itself was stopped
    CHECK(at(group, 62) == Verdict::wait);
    group.back(2, 811);
    CHECK(at(group, 62) == Verdict::form);
    CHECK(group.news() == "the ring broke; 3 ranks, step 812 redone");
    group.cut(2, "connection closed");  // again, before the others were back
    CHECK(at(group, 62) == Verdict::wait);
}

TEST_CASE("regroup: a rank that answers and does not connect has its time again after a silence") {
    Group group = members(3);
    group.back(0, 7), group.back(1, 7);
    const auto answers = [&](Group& by, int seconds) {
        by.lives(2, /*seeks=*/true, kStart + std::chrono::seconds(seconds));
        return at(by, seconds);
    };
    for (int second = 0; second < 33; ++second) CHECK(answers(group, second) == Verdict::wait);
    Group returns = group, breaks = group;
    CHECK(answers(group, 33) == Verdict::wait);
    CHECK(answers(group, 35) == Verdict::form);
    CHECK(group.news() ==
          "rank 2 (h3) lost: it answers and has not connected; 2 ranks, step 8 redone");
    CHECK(answers(returns, 35) == Verdict::wait);
    CHECK(answers(returns, 37) == Verdict::wait);
    breaks.again(ring({1, 2}, 2), "a link broke", kStart + std::chrono::seconds(33));
    breaks.back(0, 7), breaks.back(1, 7);
    CHECK(answers(breaks, 34) == Verdict::wait);
    CHECK(answers(breaks, 36) == Verdict::wait);
}

TEST_CASE("regroup: a process that was stopped takes no death for certain") {
    Group group = members(3);
    group.doubt(kStart);
    group.back(0, 4);
    group.gone(1, "redial refused", kStart);
    CHECK(at(group, 0) == Verdict::wait);
    Group most = group;
    most.back(2, 4);
    CHECK(at(most, 0) == Verdict::form);
    group.gone(2, "redial refused", kStart);
    std::string why;
    CHECK(at(group, 0, &why) == Verdict::behind);
    CHECK(
        why.starts_with("this process was stopped or heard nothing for a while; "
                        "only 1 rank of 3 answers"));
    Pause pause;
    const auto now = Clock::now();
    CHECK(!pause.note(now + std::chrono::seconds(1)));
    CHECK(!pause.lately(now + std::chrono::seconds(2)));
    CHECK(pause.lately(now + std::chrono::seconds(5)));
    CHECK(pause.lately(now + std::chrono::seconds(6)));
}

TEST_CASE("regroup: who was silent for 3 s and refuses then may have gone on with others") {
    Group group = members(5);
    group.back(0, 193);
    group.gone(1, "redial refused", kStart);
    Group early = group;
    for (const int rank : {2, 3, 4}) {
        group.gone(rank, "redial refused", kStart + std::chrono::milliseconds(3'000));
        early.gone(rank, "redial refused", kStart + std::chrono::milliseconds(2'900));
    }
    std::string why;
    CHECK(at(group, 5, &why) == Verdict::behind);
    CHECK(why.starts_with("only 1 rank of 4 answers, and the others may have gone on without it"));
    CHECK(at(early, 5) == Verdict::form);
    group.back(3, 193);
    CHECK(at(group, 5) == Verdict::form);  // half of the four, with the lowest
    Group unreached = members(5);  // by rank 4 and by the coordinator, but perhaps by 1 and 2
    unreached.back(0, 193), unreached.back(4, 193);
    Group dead = unreached;
    unreached.gone(3, "no route to this host", kStart, /*certain=*/false);
    dead.gone(3, "redial refused", kStart);
    CHECK(at(unreached, 3) == Verdict::cut_off);
    CHECK(at(dead, 3) == Verdict::form);
}

TEST_CASE("regroup: ranks that leave by agreement are not lost, and no step is redone") {
    Group group = members(4);
    group.left(2);
    group.joins("rank 4");
    group.back(0, 812, true);
    group.back(1, 812, true);
    CHECK(at(group, 0) == Verdict::wait);
    Group lost = group;
    group.back(3, 811);  // it lacks the sums of the step, and takes the result from the others
    CHECK(at(group, 0) == Verdict::form);
    CHECK(group.members() == std::vector{0, 1, 3});
    CHECK(group.news() == "rank 2 (h3) left; rank 4 joined; 4 ranks go on from step 813");
    lost.gone(3, "redial refused", kStart);
    CHECK(at(lost, 0) == Verdict::form);
    CHECK(lost.news() ==
          "rank 2 (h3) left; rank 3 (h4) lost: redial refused; rank 4 joined; 3 ranks go on from "
          "step 813");
}

// Every way in which up to six ranks are dead (which each side may know or not) or on either side
// of a cut network: never do both sides go on, and a side that has the majority always does.
TEST_CASE("regroup: two halves of a cut network never both go on") {
    for (int world = 2; world <= 6; ++world) {
        int ways = 1;
        for (int rank = 0; rank < world; ++rank) ways *= 5;
        for (int way = 0; way < ways; ++way) {
            Group sides[2] = {members(world), members(world)};
            int alive[2] = {0, 0}, unknown_dead[2] = {0, 0};
            for (int rank = 0, rest = way; rank < world; ++rank, rest /= 5) {
                const int fate = rest % 5;  // side 0, side 1, dead and known to neither, 0, both
                if (fate < 2) ++alive[fate], sides[fate].back(rank, 1);
                for (int side = 0; side < 2; ++side) {
                    const bool known = fate == 4 || (fate == 3 && side == 0);
                    if (known) sides[side].gone(rank, "redial refused", kStart);
                    unknown_dead[side] += fate >= 2 && !known;
                }
            }
            int going_on = 0;
            for (int side = 0; side < 2; ++side) {
                const bool goes_on = at(sides[side], 3) == Verdict::form;
                going_on += goes_on;
                if (alive[side] > alive[1 - side] + unknown_dead[side]) CHECK(goes_on);
                if (alive[1 - side] + unknown_dead[side] == 0 && alive[side] > 0) CHECK(goes_on);
            }
            if (going_on == 2) {
                CAPTURE(world, way);
                CHECK(going_on < 2);
            }
        }
    }
    Group minority = members(3);
    minority.back(2, 1);
    std::string why;
    CHECK(at(minority, 3, &why) == Verdict::cut_off);
    CHECK(why.find("only 1 rank of 3 answers, and the others may be training together") == 0);
    Group alone = members(3, {.alone = true});
    alone.back(2, 1);
    CHECK(at(alone, 3) == Verdict::form);
    // It waits, and who has waited takes no death for certain: they may have ended meanwhile.
    minority.doubt(kStart + std::chrono::seconds(3));
    minority.gone(0, "redial refused", kStart);
    CHECK(at(minority, 60) == Verdict::cut_off);
    Group together = minority;
    together.back(1, 1);
    CHECK(at(together, 60) == Verdict::form);
    minority.gone(1, "redial refused", kStart);
    CHECK(at(minority, 60) == Verdict::behind);
}

TEST_CASE("regroup: a ring that was never open counts for nothing: the one before does") {
    Group group = members(5);
    group.gone(4, "redial refused", kStart);
    group.back(0, 7);
    group.back(1, 7);
    CHECK(at(group, 3) == Verdict::form);  // half of four, with the lowest
    group.again(ring({1, 2}, 2), "rank 1 is lost as well", kStart + std::chrono::seconds(4));
    group.back(0, 7);
    CHECK(at(group, 5) == Verdict::wait);  // for rank 1; 2 and 3 are silent, as they were
    std::string why;
    CHECK(at(group, 7, &why) == Verdict::cut_off);
    CHECK(why.find("only 1 rank of 4 answers") == 0);
    group.back(2, 7);
    CHECK(at(group, 7) == Verdict::form);
    CHECK(group.members() == std::vector{0, 2});
    CHECK(group.news() ==
          "rank 1 (h2), rank 3 (h4) lost: no sign of life for 3 s; "
          "rank 4 (h5) lost: redial refused; 2 ranks, step 8 redone");
}

TEST_CASE("regroup: if a ring may have been open, a majority of it is needed too") {
    const wire::Welcome second = ring({2, 3, 4}, 2);  // without rank 0, which was silent
    const std::vector<wire::RingId> ready = {ring_id(second)};
    Group group = members(4);
    group.maybe_open(second, kStart);
    group.back(0, 7);
    group.back(3, 7, false, 1, ready);
    std::string why;
    CHECK(at(group, 3, &why) == Verdict::cut_off);  // 1 and 2 may be going on
    CHECK(why.find("only 1 rank of 3 answers") == 0);
    Group answered = group, open = group, told = members(4);
    answered.back(2, 7);  // three of four, and two of three
    CHECK(at(answered, 3) == Verdict::form);
    open.back(2, 8, false, 2);
    CHECK(at(open, 3) == Verdict::form);
    open.gone(1, "redial refused", kStart);
    open.cut(3, "connection closed");
    CHECK(at(open, 6) == Verdict::form);  // the lowest of ranks 2 and 3
    open.cut(2, "connection closed");
    open.back(3, 8, false, 2);
    CHECK(at(open, 9) == Verdict::cut_off);
    told.back(0, 7);  // by the rank that was READY alone
    told.back(1, 7);
    CHECK(at(told, 3) == Verdict::form);
    told.back(3, 7, false, 1, ready);
    CHECK(at(told, 3) == Verdict::form);
    told.cut(1, "connection closed");
    CHECK(at(told, 6) == Verdict::cut_off);

    Group unknown = members(4);  // a ring of which no rank here was a member
    for (int rank = 0; rank < 3; ++rank) unknown.back(rank, 7);
    CHECK(at(unknown, 3) == Verdict::form);
    unknown.back(3, 7, false, 5);
    CHECK(at(unknown, 3) == Verdict::cut_off);
    CHECK(unknown.is_behind(5, 4));
    CHECK(open.is_behind(2, 1));
    CHECK(!open.is_behind(2, 3));
    CHECK(!open.is_behind(1, 1));
}

TEST_CASE("regroup: who was back and is silent since does not count") {
    Group group = members(3);
    for (int rank = 0; rank < 3; ++rank) group.back(rank, 7);
    group.gone(2, "redial refused", kStart);
    std::string why;
    const auto later = kStart + std::chrono::seconds(4);
    group.heard(0, later);
    CHECK(group.verdict(later, why) == Verdict::form);
    CHECK(group.members() == std::vector{0});
    group.heard(1, later);
    CHECK(group.verdict(later, why) == Verdict::form);
    CHECK(group.members() == std::vector{0, 1});
}

TEST_CASE("regroup: a machine that was suspended, or stopped with its clock, is noticed") {
    using std::chrono::seconds;
    const auto now = Clock::now();
    const Pause::Outside then = Pause::Outside::now();
    Pause pause;
    CHECK(!pause.note(now + seconds(1), {then.boot + seconds(1), then.wall + seconds(1)}));
    CHECK(!pause.note(now + seconds(2), {then.boot + seconds(2), then.wall - seconds(3600)}));
    Pause other = pause;
    CHECK(pause.note(now + seconds(3), {then.boot + seconds(60), then.wall}));
    CHECK(other.note(now + seconds(3), {then.boot + seconds(3), then.wall}));
    CHECK(!other.note(now + seconds(4), {then.boot + seconds(4), then.wall}));
}
