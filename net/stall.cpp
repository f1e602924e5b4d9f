#include "net/stall.h"

#include <algorithm>
#include <ranges>

#include "net/roster.h"

namespace convoy {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::seconds;

static constexpr seconds kQuiet{3};

StallWatch::StallWatch(std::vector<std::string> addresses, milliseconds patience,
                       Clock::time_point now)
    : patience_(patience), next_(patience) {
    for (std::string& address : addresses) ranks_.push_back({std::move(address), {}, now, now});
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
    for (const int rank : waited_for(now))
        names += (names.empty() ? "" : "; for ") + describe(rank, now);
    if (names.empty())
        return cat(text, "all ranks are in the same collective and no byte has moved for ",
                   duration_cast<seconds>(waited).count(), " s: check the network between them");
    return cat(text, "all wait for ", names);
}

// By the numbers of the collectives that the ranks have begun.
std::vector<int> StallWatch::waited_for(Clock::time_point now) const {
    const auto begun = [](const Rank& r) { return r.beat.begun; };
    const auto [least, most] = std::ranges::minmax(ranks_ | std::views::transform(begun));
    std::vector<int> ranks;
    for (int rank = 0; rank < int(ranks_.size()); ++rank)
        if (ranks_[rank].beat.begun == least && (least < most || now - ranks_[rank].heard > kQuiet))
            ranks.push_back(rank);
    return ranks;
}

std::string StallWatch::describe(int rank, Clock::time_point now) const {
    const Rank& r = ranks_[rank];
    const auto quiet = duration_cast<milliseconds>(now - r.heard);
    std::string text = rank_name(rank, r.address);
    if (!r.beat.phase.empty())
        text += cat(", in ", r.beat.phase, " since ",
                    duration_cast<seconds>(quiet + milliseconds(r.beat.phase_ms)).count(), " s");
    if (quiet > kQuiet)
        text += cat(", and silent for ", duration_cast<seconds>(quiet).count(),
                    " s: its machine answers, its process does not");
    return text;
}

std::string StallWatch::last_seen(int rank) const {
    const wire::Heartbeat& beat = ranks_[rank].beat;
    return beat.phase.empty() ? "" : cat("at step ", beat.step, " in ", beat.phase);
}

}  // namespace convoy
