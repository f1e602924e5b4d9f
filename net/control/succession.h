// succession.h — which rank to ask for the next ring's coordinator, after the last coordinator was
// lost. Answers and time go in, the next rank to ask comes out. The sockets are in joining.cpp.
//
//   a round   the last coordinator; while its process answers, nobody else. One that was silent is
//             asked after 4 s, and not waited for
//             ranks 0, 1, 2 …, each when no lower one is waited for:
//
//   waited for ── refused ────────────────► gone
//     │  └─────── "not the coordinator" ──► it finds out itself, and is given longer
//     └────────── nothing for the silence ► passed over
//
// A rank serves a coordinator when its own turn comes. A rank may be silent to one rank and answer
// another, so two may serve. Waiting ranks ask lower ranks after each silence; all go to the
// lowest.
#pragma once

#include <algorithm>
#include <optional>
#include <set>

#include "net/control/regroup.h"

namespace convoy {

class Succession {
 public:
    explicit Succession(Clock::time_point now, std::chrono::milliseconds silence = kSilence)
        : begin_(now), silence_(silence) {}
    // A rank that is asked must answer in this time.
    std::chrono::milliseconds ask_patience() const { return silence_ / 3; }

    // The next rank to ask. Returns nothing at the end of a round; the next round follows after a
    // pause. Answers must come before the next call. silent: the coordinator of the last ring was,
    // before the connection broke.
    std::optional<int> next(const wire::Welcome& last, bool silent, Clock::time_point now) {
        if (at_ == kBegin) {
            at_ = kServer;
            // If the first heir was silent too, perhaps this rank itself was cut off.
            if (!silent || now - begin_ >= silence_ + ask_patience()) return last.server;
        }
        const bool waits = at_ == kServer ? !silent && !is_gone(last.server)
                                          : !is_gone(at_) && now - begin_ < patience_with(at_);
        int rank = at_ == kServer ? 0 : at_ + 1;
        if (rank == last.server) ++rank;
        if (waits || rank >= last.world) {
            at_ = kBegin;
            return {};
        }
        return at_ = rank;
    }
    void gone(int candidate) { gone_.insert(candidate); }
    void answers(int candidate) { answered_.insert(candidate); }
    bool is_gone(int candidate) const { return gone_.contains(candidate); }
    bool is_over(Clock::time_point now) const { return now - begin_ >= kNobody * silence_; }

 private:
    static constexpr int kBegin = -3, kServer = -2;

    // A rank that answered looks for the coordinator too. It may have begun later, and waits as
    // long as this rank for each silent rank below it. If this rank passed over it too soon, both
    // would serve a coordinator.
    std::chrono::milliseconds patience_with(int rank) const {
        if (!answered_.contains(rank)) return silence_;
        return std::min(silence_ + 3 * (rank + 1) * ask_patience(), (kNobody - 1) * silence_);
    }

    Clock::time_point begin_;
    std::chrono::milliseconds silence_;
    std::set<int> gone_, answered_;
    int at_ = kBegin;  // in the round: who was asked last
};

}  // namespace convoy
