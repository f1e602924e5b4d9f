// regroup.h — who goes on after the ring broke: messages and time in, a verdict out. No sockets.
//
//              REJOIN                       a rank is, until the verdict:
//   waited for ──────────────────► back     waited for   it may still compute; heard of lately
//     │   ▲                                 silent       no sign of life for kSilence
//     │   └── sign of life ── silent ◄──┐   back         it has left the broken ring
//     │        3 s without one ─────────┘   gone         for certain: its address refuses
//     └── refused, another process,                      connections, another process answers
//         or it has left in order ────► gone             there, or it said good-bye
//
// The verdict comes when nobody is waited for. Where all others are gone for certain, any number
// goes on. Where some are only silent, they may be the other half of a cut network: then more than
// half of those who are not gone go on, or exactly half of them with the lowest of their ranks. So
// two groups never both go on: what is gone for one group is gone indeed, so the halves that both
// count cannot sum up to more than all who live. The smaller part waits for the others. A process
// that waited so, was stopped for some time itself, or heard nothing, may have been left behind by
// ranks that have ended since: who refuses then is not gone for certain. Nor is one that was silent
// for kSilence before it refused.
//
// Half of which ring? Of the last that was open, which is so when all its ranks have said READY and
// one knows that. A ring that broke before counts for nothing. Ranks that were ready for it and
// have lost the coordinator do not know whether it was open: they need half of that one too, unless
// a rank of it comes back that was not ready. (Dynamic voting: Yeger Lotem, Keidar, Dolev, PODC
// '97.)
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "net/limits.h"
#include "net/wire.h"
#include "src/base/clock.h"

namespace convoy {

// Whether this process itself was stopped lately (SIGSTOP, a suspended machine), by clocks that are
// read every second or more often: Clock stands still while the machine is suspended.
class Pause {
 public:
    // Time since some moment, by the clock that counts suspension and by that of the wall.
    struct Outside {
        std::chrono::nanoseconds boot, wall;
        static Outside now();
    };
    // Returns whether it was stopped since the last call.
    bool note(Clock::time_point now, const Outside& outside = Outside::now()) {
        const auto passed = std::max<std::chrono::nanoseconds>(
            {now - last_, outside.boot - outside_.boot, outside.wall - outside_.wall});
        const bool stopped = passed > kSilence * 3 / 5;
        if (stopped) stopped_at_ = now;
        last_ = now, outside_ = outside;
        return stopped;
    }
    bool lately(Clock::time_point now) {
        note(now);
        return now - stopped_at_ < 2 * kSilence;
    }

 private:
    Clock::time_point last_ = Clock::now(), stopped_at_ = last_ - 2 * kSilence;
    Outside outside_ = Outside::now();
};

wire::Attempt attempt_of(const wire::Welcome& ring);
int rank_of(const wire::Welcome& ring, uint64_t process);  // -1: none
// Those of `ring` that `base` has not get the ranks after its own.
void add_newcomers(wire::Welcome& base, const wire::Welcome& ring);

class Regroup {
 public:
    Regroup() = default;
    // The members of `open`, the last ring that was open, all waited for. `why` it broke.
    Regroup(const wire::Welcome& open, std::string why, Clock::time_point now);
    // Another ring was to follow it. Its newcomers get the ranks after the others. failed: it was
    // never open, for certain; those who were back are waited for again.
    void attempted(const wire::Welcome& ring, Clock::time_point now);
    void failed(const wire::Welcome& ring, std::string why, Clock::time_point now);

    void heard(int rank, Clock::time_point now) {
        ranks_[size_t(rank)].heard = now, ranks_[size_t(rank)].patience = kSilence;
    }
    // It was lost, and is waited for only if it gives a sign of life.
    void expect_none(int rank) { ranks_[size_t(rank)].patience = {}; }
    void cut(int rank, const std::string& why);  // its connection is; it may come back by another
    // planned: it has done these steps with all others, and nothing broke.
    void back(int rank, int64_t steps, bool planned = false, wire::Known known = {});
    // certain: else it was only not reached, and may live where others reach it.
    void gone(int rank, const std::string& why, Clock::time_point now, bool certain = true);
    void left(int rank) { ranks_[size_t(rank)].state = State::left; }
    // `name` has asked to be taken in: it counts from the next ring on.
    void joins(const std::string& name) { newcomers_.push_back(name); }
    bool waits_for(int rank) const { return ranks_[size_t(rank)].state == State::waited_for; }
    // Whether `process`, which serves the coordinator, was left behind by those to which ring `id`
    // was open.
    bool is_behind(uint64_t id, uint32_t generation, uint64_t process) const;
    // This process itself was stopped or cut off: nobody was silent meanwhile, and it may have been
    // left behind.
    void doubt(Clock::time_point now);

    // cut_off: the others, of which some may live, may be training together. behind: they may have
    // done so, and be gone. `why` says both.
    enum class Verdict { wait, form, cut_off, behind };
    Verdict verdict(Clock::time_point now, std::string& why);
    std::vector<int> members() const;  // who was back at the verdict, ascending; without newcomers
    // "rank 2 (10.0.0.7:29401) lost: connection closed, redial refused; 3 ranks, step 812 redone",
    // "rank 2 (10.0.0.7:29401) left; rank 3 (10.0.0.8:29400) joined; 4 ranks go on from step 813"
    std::string news() const;
    std::string waiting_text() const;  // "waiting for rank 1 (…), rank 3 (…)"

 private:
    enum class State { waited_for, back, gone, left };
    struct Rank {
        bool is_back() const { return state == State::back && !silent; }
        uint64_t process;
        std::string name, why = {};
        State state = State::waited_for;
        Clock::time_point heard;
        Clock::duration patience = kSilence;
        bool silent = false;  // for so long, at the verdict; gone: not for certain
        wire::Known known = {};
    };
    struct Count {
        int back = 0, absent = 0, dead = 0;  // dead: of the absent
        bool has_lowest = false;
        bool is_enough() const { return has_lowest ? back >= absent : back > absent; }
    };
    void add(const wire::Member& peer, Clock::time_point now);
    Count count(const std::vector<uint64_t>& ring) const;
    std::vector<wire::Attempt> binding_rings() const;
    bool was_never_open(const wire::Attempt& ring) const;

    std::vector<Rank> ranks_;
    std::vector<std::string> newcomers_;
    wire::Attempt open_;
    std::vector<wire::Attempt> attempts_;  // that may have been open
    std::vector<uint64_t> failed_;
    wire::Rules rules_;
    std::string why_;
    bool doubts_ = false, planned_ = false;
    int64_t steps_ = -1;
};

}  // namespace convoy
