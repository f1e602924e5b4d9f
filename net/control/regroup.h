// regroup.h — which ranks continue after a ring broke: messages and time in, a verdict out. No
// sockets, no clock.
//
//              JOIN                         the state of a rank until the verdict:
//   waited for ──────────────────► back     waited for   it may still compute or seek
//     │   ▲                                 silent       no sign of life for the silence
//     │   └── sign of life ── silent ◄──┐   back         it has left the broken ring
//     │        3 s without one ─────────┘   gone         its process is dead for certain: each of
//     └── dead, or left in order ───► gone               its addresses refuses connections, or
//                                                        another process answers there
//
// The verdict comes when no rank is waited for. The job continues if more than half of the last
// open ring is back, or exactly half with its lowest rank. Ranks that are dead for certain, or have
// left in order, are not counted. So two parts of a cut network never both continue.
//
// A ring is open when its coordinator has READY from all its ranks. A rank that sent READY and then
// lost the coordinator does not know whether the ring was open. Then the job needs two majorities:
// of that ring and of the open ring before it.
//
// A refused connection proves death only if the rank gave a sign of life less than kSilence earlier
// and this process was neither stopped nor cut off. Else the rank may have finished with others.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "net/control/limits.h"
#include "net/control/roster.h"
#include "src/base/clock.h"

namespace convoy {

wire::RingId ring_id(const wire::Welcome& ring);
int rank_of(const wire::Welcome& ring, uint64_t process);  // -1: none
// Adds to `base` the members that only `ring` has. Their ranks follow those of `base`.
void add_newcomers(wire::Welcome& base, const wire::Welcome& ring);

class Regroup {
 public:
    Regroup() = default;
    // Waits for all members of `open`, the last ring that was open. `why`: why that ring broke.
    Regroup(const wire::Welcome& open, std::string why, Clock::time_point now);
    // `ring` was formed after the open ring, and its coordinator was lost, so it may have been
    // open. The newcomers of `ring` get the highest ranks.
    void maybe_open(const wire::Welcome& ring, Clock::time_point now);
    // This coordinator has formed `ring`, which broke before it was open. The ranks that were back
    // are waited for again.
    void again(const wire::Welcome& ring, std::string why, Clock::time_point now);

    void heard(int rank, Clock::time_point now) {
        ranks_[size_t(rank)].heard = now, ranks_[size_t(rank)].patience = rules_.silence();
    }
    // This process was late by so much, so the ranks were not silent in that time.
    void excuse(Clock::duration late);
    // It answers a probe. seeks: it is in no ring. If it does not connect to this coordinator
    // in kStray, and kAskPatience more per rank, it counts as silent.
    void lives(int rank, bool seeks, Clock::time_point now);
    // The rank was lost: it is waited for only if it gives a sign of life.
    void expect_none(int rank) { ranks_[size_t(rank)].patience = {}; }
    void cut(int rank, const std::string& why);  // its connection broke; it may connect again
    void back(int rank, const wire::Join& join);
    // certain: the process is dead. Otherwise this process did not reach it, but other ranks may.
    void gone(int rank, const std::string& why, Clock::time_point now, bool certain = true);
    void left(int rank) { ranks_[size_t(rank)].state = State::left; }
    // `name` asks to join. It does not count before the next ring.
    void joins(const std::string& name) { newcomers_.push_back(name); }
    // The ring broke, though nobody left and no rank is dead for certain.
    bool is_false_alarm() const;
    bool waits_for(int rank) const { return ranks_[size_t(rank)].state == State::waited_for; }
    // Whether the ranks to which a ring of this generation was open have continued without
    // `process`.
    bool is_behind(uint32_t generation, uint64_t process) const;
    // This process was stopped or cut off, so it cannot tell which ranks were silent in that time,
    // and refused connections prove nothing.
    void doubt(Clock::time_point now);

    // cut_off: the other ranks may be training together, as some of them may live. behind: they may
    // have continued without these ranks and finished. `why` says which.
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
        uint64_t process() const { return member.process; }
        wire::Member member;
        std::string why = {};
        State state = State::waited_for;
        Clock::time_point heard;
        Clock::duration patience;
        Clock::time_point answered = {};              // the last probe
        std::optional<Clock::time_point> seeks = {};  // a coordinator, since when
        bool is_stray = false;                        // for too long
        bool silent = false;                          // at the verdict; if gone: it may still live
        uint64_t open = 0;                            // the last ring that was open to it
        uint32_t open_generation = 0;
    };
    struct Count {
        int back = 0, absent = 0, dead = 0;  // dead: how many of the absent
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
