// regroup.cpp — see regroup.h.
#include "net/regroup.h"

#include <time.h>

#include <algorithm>

#include "src/base/text.h"

namespace convoy {

Pause::Outside Pause::Outside::now() {
    timespec boot{};
    clock_gettime(CLOCK_BOOTTIME, &boot);
    return {std::chrono::seconds(boot.tv_sec) + std::chrono::nanoseconds(boot.tv_nsec),
            std::chrono::system_clock::now().time_since_epoch()};
}

Regroup::Regroup(std::vector<std::string> names, const wire::Rules& rules, std::string why,
                 Clock::time_point now)
    : rules_(rules), why_(std::move(why)) {
    for (std::string& name : names) ranks_.push_back({.name = std::move(name), .heard = now});
}

void Regroup::cut(int rank, const std::string& why) {
    Rank& r = ranks_[size_t(rank)];
    if (r.state == State::back) r.state = State::waited_for;
    if (r.why.empty()) r.why = why;
}

void Regroup::back(int rank, int64_t steps, bool planned) {
    planned_ |= planned;
    ranks_[size_t(rank)].state = State::back;
    steps_ = std::max(steps_, steps);
}

void Regroup::gone(int rank, const std::string& why) {
    Rank& r = ranks_[size_t(rank)];
    r.state = State::gone;
    r.why += cat(r.why.empty() ? "" : ", ", why);
}

void Regroup::doubt(Clock::time_point now) {
    doubts_ = true;
    for (Rank& r : ranks_) r.heard = now;
}

Regroup::Verdict Regroup::verdict(Clock::time_point now, std::string& why) const {
    int silent = 0, dead = 0, back = 0, lowest = -1;
    for (int rank = 0; rank < int(ranks_.size()); ++rank) {
        const Rank& r = ranks_[size_t(rank)];
        if (r.state == State::left || (r.state == State::gone && !doubts_)) continue;
        if (lowest < 0) lowest = rank;
        back += r.state == State::back;
        if (r.state == State::back) continue;
        if (r.state == State::waited_for && now - r.heard < kSilence) return Verdict::wait;
        ++silent, dead += r.state == State::gone;
    }
    if (back == 0) return Verdict::wait;
    const bool has_lowest = ranks_[size_t(lowest)].state == State::back;
    if (silent > 0 && !rules_.alone && (has_lowest ? back < silent : back <= silent)) {
        why = cat(doubts_ ? "this process was stopped or cut off for a while; " : "", "only ",
                  counted(back, "rank"), " of ", back + silent, " ",
                  back == 1 ? "answers" : "answer", ", and the others may ",
                  dead == silent ? "have gone on without it" : "be training together");
        return dead == silent ? Verdict::behind : Verdict::cut_off;
    }
    return Verdict::form;
}

std::vector<int> Regroup::members() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < int(ranks_.size()); ++rank)
        if (ranks_[size_t(rank)].state == State::back) ranks.push_back(rank);
    return ranks;
}

std::string Regroup::news() const {
    std::string lost;
    for (const Rank& r : ranks_)
        if (r.state != State::back)
            lost += cat(lost.empty() ? "" : "; ", r.name,
                        r.state == State::left ? " left" : " lost: ", r.why,
                        r.state != State::waited_for || r.why.starts_with("no sign") ? ""
                        : r.why.empty() ? "no sign of life for 3 s"
                                        : ", no sign of life for 3 s");
    for (const std::string& name : newcomers_)
        lost += cat(lost.empty() ? "" : "; ", name, " joined");
    if (lost.empty()) lost = why_;
    const size_t ranks = members().size() + newcomers_.size();
    lost += cat("; ", counted(ranks, "rank"));
    if (steps_ < 0) return lost;  // nothing was trained yet
    if (!planned_) return cat(lost, ", step ", steps_ + 1, " redone");
    return cat(lost, ranks == 1 ? " goes" : " go", " on from step ", steps_ + 1);
}

std::string Regroup::waiting_text() const {
    std::vector<std::string> names;
    for (const Rank& r : ranks_)
        if (r.state == State::waited_for) names.push_back(r.name);
    return cat("waiting for ", join_text(names));
}

}  // namespace convoy
