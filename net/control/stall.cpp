#include "net/control/stall.h"

#include <algorithm>

#include "net/control/roster.h"

namespace convoy {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::seconds;

StallWatch::StallWatch(const std::vector<wire::Member>& ranks, milliseconds patience,
                       Clock::time_point now)
    : patience_(patience), next_(patience) {
    for (const wire::Member& member : ranks) ranks_.push_back({member, {}, now, now});
}

void StallWatch::heard(int rank, const wire::Heartbeat& beat, Clock::time_point now) {
    Rank& r = ranks_[rank];
    // A rank outside of collectives counts as moving, so that a wait is timed from its beginning.
    if (beat.begun == beat.done || beat.done != r.beat.done || beat.moved != r.beat.moved ||
        r.beat.begun == r.beat.done)
        r.moved = now;
    r.beat = beat;
    r.heard = now;
}

milliseconds StallWatch::longest_wait(Clock::time_point now) const {
    milliseconds waited{0};
    for (const Rank& r : ranks_)
        if (r.beat.begun > r.beat.done)
            waited = std::max(waited, duration_cast<milliseconds>(now - r.moved));
    return waited;
}

std::optional<std::string> StallWatch::report(Clock::time_point now) {
    const milliseconds waited = longest_wait(now);
    if (waited < patience_) next_ = patience_;
    if (waited < next_) return std::nullopt;
    while (next_ <= waited) next_ *= 2;
    return stall(now);
}

std::string StallWatch::stall(Clock::time_point now) const {
    const milliseconds waited = longest_wait(now);
    if (ranks_.empty() || waited < patience_) return "";
    int64_t step = 0;
    for (const Rank& r : ranks_) step = std::max(step, r.beat.step);
    std::string text = cat("step ", step, ": ");
    std::string names;
    std::vector<wire::Member> late;
    for (const int rank : waited_for(now)) {
        names += (names.empty() ? "" : "; for ") + describe(rank, now);
        late.push_back(ranks_[size_t(rank)].member);
    }
    if (late.size() > kMostNames) names = rank_names(late);
    if (names.empty())
        return cat(text, "all ranks are in the same collective and no byte has moved for ",
                   duration_cast<seconds>(waited).count(), " s: check the network between them");
    return cat(text, "all wait for ", names);
}

// Suspects are ranks that do not wait, or are silent. Blames the suspects that have begun the
// fewest waits; in a ring all ranks begin the same waits. If all ranks wait and speak, blames the
// ranks with the fewest waits, unless all have begun equally many.
std::vector<int> StallWatch::waited_for(Clock::time_point now) const {
    const auto is_suspect = [&](const Rank& r) {
        return r.beat.begun == r.beat.done || now - r.heard > kQuiet;
    };
    const bool all_wait = std::ranges::none_of(ranks_, is_suspect);
    uint64_t least = UINT64_MAX, most = 0;
    for (const Rank& r : ranks_) {
        most = std::max(most, r.beat.begun);
        if (all_wait || is_suspect(r)) least = std::min(least, r.beat.begun);
    }
    std::vector<int> ranks;
    for (int rank = 0; rank < int(ranks_.size()); ++rank)
        if (ranks_[rank].beat.begun == least &&
            (all_wait ? least < most : is_suspect(ranks_[rank])))
            ranks.push_back(rank);
    return ranks;
}

std::string StallWatch::describe(int rank, Clock::time_point now) const {
    const Rank& r = ranks_[rank];
    const auto quiet = duration_cast<milliseconds>(now - r.heard);
    std::string text = rank_name(r.member);
    if (quiet > kQuiet)
        return cat(text, ", ", last_seen(rank, now), ": its machine answers, its process does not");
    if (!r.beat.phase.empty())
        text += cat(", in ", r.beat.phase, " since ",
                    duration_cast<seconds>(quiet + milliseconds(r.beat.phase_ms)).count(), " s");
    return text;
}

std::string StallWatch::last_seen(int rank, Clock::time_point now) const {
    const Rank& r = ranks_[rank];
    const std::string quiet = fmt::format("{:.1f} s", seconds_between(r.heard, now));
    if (r.beat.phase.empty()) return cat("silent for ", quiet);
    return cat("last heard of ", quiet, " ago, at step ", r.beat.step, " in ", r.beat.phase);
}

}  // namespace convoy
