// regroup.h — which ranks continue after a ring broke: messages and time in, a verdict out. No
// sockets, no clock.
//
//              JOIN                         the state of a rank until the verdict:
//   waited for ──────────────────► back     waited for   it may still compute
//     │   ▲                                 silent       no sign of life for kSilence
//     │   └── sign of life ── silent ◄──┐   back         it has left the broken ring
//     │        3 s without one ─────────┘   gone         its process is dead for certain: each of
//     └── dead, or left in order ───► gone               its addresses refuses connections, or
//                                                        another process answers there
//
// The verdict comes when no rank is waited for. The job continues if more than half of the last
// open ring is back, or exactly half with its lowest rank. Ranks that are dead for certain, or have
// left in order, are not counted. So two parts of a cut network never both continue. The smaller
// part waits for the other one.
//
// A ring is open when its coordinator has READY of all its ranks. Ranks that were READY and lost
// the coordinator do not know whether the ring was open. Then the job needs a majority of that ring
// too, and of the open ring before it.
//
// A refused connection proves a death only if the rank gave a sign of life less than kSilence
// before, and if this process was neither stopped nor cut off. Else the rank may have continued
// with others, and have finished.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "net/limits.h"
#include "net/wire.h"
#include "src/base/clock.h"

namespace convoy {

wire::RingId ring_id(const wire::Welcome& ring);
int rank_of(const wire::Welcome& ring, uint64_t process);  // -1: none
// The members of `ring` that `base` does not have get the ranks after its own.
void add_newcomers(wire::Welcome& base, const wire::Welcome& ring);

class Regroup {
 public:
    Regroup() = default;
    // The members of `open`, the last ring that was open, all waited for. `why` it broke.
    Regroup(const wire::Welcome& open, std::string why, Clock::time_point now);
    // `ring` was formed after it. Its newcomers get the ranks after the others. The coordinator of
    // the ring was lost: the ring may have been open.
    void maybe_open(const wire::Welcome& ring, Clock::time_point now);
    // This coordinator has formed `ring`, which broke before it was open: those who were back are
    // waited for again.
    void again(const wire::Welcome& ring, std::string why, Clock::time_point now);

    void heard(int rank, Clock::time_point now) {
        ranks_[size_t(rank)].heard = now, ranks_[size_t(rank)].patience = kSilence;
    }
    // The rank was lost: it is waited for only if it gives a sign of life.
    void expect_none(int rank) { ranks_[size_t(rank)].patience = {}; }
    void cut(int rank, const std::string& why);  // its connection broke; it may connect again
    void back(int rank, const wire::Join& join);
    // certain: else the rank was only not reached, and may live where others reach it.
    void gone(int rank, const std::string& why, Clock::time_point now, bool certain = true);
    void left(int rank) { ranks_[size_t(rank)].state = State::left; }
    // `name` asks to be added: it counts from the next ring on.
    void joins(const std::string& name) { newcomers_.push_back(name); }
    bool waits_for(int rank) const { return ranks_[size_t(rank)].state == State::waited_for; }
    // Whether the ranks to which a ring of this generation was open have continued without
    // `process`.
    bool is_behind(uint32_t generation, uint64_t process) const;
    // This process was stopped or cut off: no rank was silent meanwhile, and refused connections
    // prove nothing.
    void doubt(Clock::time_point now);

    // cut_off: the others, some of which may live, may train together. behind: they may have done
    // so, and have ended. `why` says both.
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
        bool silent = false;  // at the verdict; of one that is gone: not for certain
        uint64_t open = 0;    // the last ring that was open to it
        uint32_t open_generation = 0;
    };
    struct Count {
        int back = 0, absent = 0, dead = 0;  // dead: of the absent
        bool has_lowest = false;
        bool is_enough() const { return has_lowest ? back >= absent : back > absent; }
    };
    void add(const wire::Welcome& ring, Clock::time_point now);
    void note_ring(const wire::RingId& ring);
    Count count(const wire::RingId& ring) const;
    std::vector<wire::RingId> binding_rings() const;

    std::vector<Rank> ranks_;
    std::vector<std::string> newcomers_;
    wire::RingId open_;
    std::vector<wire::RingId> maybe_open_;  // formed after it
    wire::Rules rules_;
    std::string why_;
    bool doubts_ = false, planned_ = false;
    int64_t steps_ = -1;
};

}  // namespace convoy
