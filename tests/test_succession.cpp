// Who serves the next coordinator, in virtual time: hundreds of jobs whose ranks die and whose
// links come and go, driven by Succession and Regroup as rejoin.cpp and coordinator_again.cpp do.
#include "net/succession.h"

#include <map>
#include <random>
#include <utility>

#include "tests/support.h"

using namespace convoy;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kTick{20};

struct Rank {
    Succession turn{Clock::time_point{}};
    Clock::time_point heard{}, free_at{}, looks_at{};  // of a coordinator; done with asking; lower
    std::optional<int> asked;                          // the one that is to answer at free_at
    int waits_at = -1;                                 // the rank whose coordinator has taken it
    std::optional<Regroup> serves;
    bool alive = true, cut_off = false, ended = false, in_ring = false;
};

struct World {
    int world, server;
    std::vector<Rank> ranks;
    // Until when two ranks do not hear each other, and when one dies.
    std::map<std::pair<int, int>, Clock::time_point> down_until;
    std::map<int, Clock::time_point> dies;
    Clock::time_point now{};
    int rings = 0;
    bool looks_lower = true;

    bool hear(int a, int b) const {
        const auto found = down_until.find(std::minmax(a, b));
        return found == down_until.end() || now >= found->second;
    }
    void serve(int rank) {
        Rank& own = ranks[size_t(rank)];
        if (own.serves) return;
        std::vector<std::string> names;
        for (int i = 0; i < world; ++i) names.push_back(cat("rank ", i));
        own.serves = Regroup(names, {}, "the ring broke", now);
        if (now - own.heard > kSilence) own.serves->doubt(now);
    }
    void kill(int rank) {
        Rank& own = ranks[size_t(rank)];
        if (std::exchange(own.alive, false) && own.waits_at >= 0 && own.waits_at != rank)
            leave(rank);
    }
    void leave(int rank) {  // the coordinator that has taken it
        Rank& own = ranks[size_t(rank)];
        if (own.waits_at >= 0 && ranks[size_t(own.waits_at)].serves)
            ranks[size_t(own.waits_at)].serves->cut(rank, "connection closed");
        own.waits_at = -1, own.asked = {}, own.turn = Succession(now);
    }
    // Whether the coordinator of `candidate` takes this rank; nothing: no answer yet.
    std::optional<bool> ask(int rank, int candidate) {
        Rank& own = ranks[size_t(rank)];
        if (!own.asked) {
            if (own.turn.is_gone(candidate)) return false;
            own.asked = candidate;
            own.free_at = now + (hear(rank, candidate) ? kTick : Succession::kDialPatience);
        }
        if (now < own.free_at) return {};
        own.asked = {};
        Rank& other = ranks[size_t(candidate)];
        if (!hear(rank, candidate)) return false;
        if (!other.alive || other.ended) return own.turn.gone(candidate), false;
        if (other.in_ring) return own.ended = true, false;  // left behind
        if (!other.serves) return own.turn.answers(candidate), false;
        if (own.waits_at >= 0) leave(rank), own.serves.reset();  // a lower one
        own.waits_at = candidate, own.heard = now;
        own.looks_at = now + Succession::kDialPatience;
        other.serves->back(rank, 0);
        if (other.cut_off) other.serves->doubt(now);
        return true;
    }
    void seek(int rank) {
        Rank& own = ranks[size_t(rank)];
        if (own.asked && !ask(rank, *own.asked).has_value()) return;
        while (own.waits_at < 0 && !own.ended) {
            const auto next = own.turn.next({world, server, now - own.heard > kSilence}, now);
            if (!next) return own.ended = own.turn.is_over(now), void();
            if (*next == rank) serve(rank);
            if (!ask(rank, *next).has_value()) return;
        }
    }
    void wait(int rank) {
        Rank& own = ranks[size_t(rank)];
        Rank& at = ranks[size_t(own.waits_at)];
        if (hear(rank, own.waits_at)) own.heard = now;
        if (!at.alive || at.ended || !at.serves || now - own.heard > kSilence) return leave(rank);
        if (!looks_lower || (now < own.looks_at && !own.asked)) return;
        const int serving = own.waits_at;
        for (int lower = own.asked.value_or(0); lower < serving; ++lower) {
            const auto taken = ask(rank, lower);
            if (!taken || *taken || own.ended) return;
        }
        own.looks_at = now + kSilence;
    }
    void decide(int rank) {
        Rank& own = ranks[size_t(rank)];
        for (int other = 0; other < world; ++other) {
            const Rank& member = ranks[size_t(other)];
            if (!own.serves->waits_for(other) || !hear(rank, other)) continue;
            if (member.alive && member.in_ring) own.ended = true;
            if (member.alive && !member.ended)
                own.serves->heard(other, now);
            else
                own.serves->gone(other, "redial refused");
        }
        std::string why;
        const auto verdict = own.serves->verdict(now, why);
        if (verdict == Regroup::Verdict::behind) own.ended = true;
        if (verdict == Regroup::Verdict::cut_off && !std::exchange(own.cut_off, true))
            own.serves->doubt(now);
        if (verdict != Regroup::Verdict::form || own.ended) return;
        ++rings;
        for (const int member : own.serves->members()) ranks[size_t(member)].in_ring = true;
    }
    void run(Clock::time_point end) {
        for (; now < end; now += kTick)
            for (int rank = 0; rank < world; ++rank) {
                Rank& own = ranks[size_t(rank)];
                if (dies.contains(rank) && now >= dies[rank]) kill(rank);
                if (!own.alive || own.ended || own.in_ring || now < own.looks_at - kSilence)
                    continue;
                own.waits_at < 0 ? seek(rank) : wait(rank);
                if (own.serves && !own.ended && !own.in_ring) decide(rank);
            }
    }
    int count(bool Rank::*what) const { return int(std::ranges::count(ranks, true, what)); }
};

World drawn(uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](int n) { return int(random() % uint64_t(n)); };
    World job{2 + below(4), 0, {}, {}, {}, {}, 0, true};
    job.server = below(job.world);
    job.ranks.resize(size_t(job.world));
    const int side = below(2) ? below(1 << job.world) : 0;  // a network cut in two, or not
    for (int a = 0; a < job.world; ++a)
        for (int b = a + 1; b < job.world; ++b)
            if ((side >> a & 1) != (side >> b & 1) || below(6) == 0)
                job.down_until[{a, b}] = job.now + milliseconds(below(2) ? 700 : 1000 * below(9));
    job.serve(job.server);
    for (int rank = 0; rank < job.world; ++rank) {
        Rank& own = job.ranks[size_t(rank)];
        if (!job.hear(rank, job.server)) own.heard -= kSilence + kTick;  // that broke the ring
        if (below(5) == 0) job.dies[rank] = job.now + milliseconds(below(2) ? 0 : below(9000));
        own.turn = Succession(job.now);
        own.looks_at = job.now + kSilence + milliseconds(below(500));  // it still computes
    }
    return job;
}

}  // namespace

TEST_CASE(
    "succession: ranks that die, links that come and go: one ring at most, and nobody hangs") {
    int formed = 0, whole = 0, ended = 0;
    for (uint64_t seed = 0; seed < 30000; ++seed) {
        World job = drawn(seed);
        job.run(job.now + std::chrono::seconds(90));
        CAPTURE(seed);
        const int alive = job.count(&Rank::alive), in_ring = job.count(&Rank::in_ring);
        CHECK(job.rings <= 1);
        // Who lives is in the ring, or was told that it is left behind.
        int lost = 0;
        for (const Rank& rank : job.ranks) lost += rank.alive && !rank.in_ring && !rank.ended;
        CHECK(lost == 0);
        formed += job.rings == 1, whole += alive > 0 && in_ring == alive;
        ended += alive > 0 && in_ring == 0;
    }
    MESSAGE(formed, " rings, ", whole, " with all who live; none though some live: ", ended);
    CHECK(formed > 29'500);
    CHECK(whole > 20'000);  // fewer where patience with others is less
}

TEST_CASE("succession: where nobody asks lower ranks, two coordinators wait for each other") {
    int hung = 0;
    for (uint64_t seed = 0; seed < 3000; ++seed) {
        World job = drawn(seed);
        job.looks_lower = false;
        job.run(job.now + std::chrono::seconds(90));
        for (const Rank& rank : job.ranks) hung += rank.alive && !rank.in_ring && !rank.ended;
    }
    CHECK(hung > 0);
}
