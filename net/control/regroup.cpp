#include "net/control/regroup.h"

#include <algorithm>

#include "src/base/text.h"

namespace convoy {

static constexpr char kNotConnected[] = "it answers and has not connected";

wire::RingId ring_id(const wire::Welcome& ring) {
    wire::RingId id{ring.id, ring.generation};
    for (const wire::Member& peer : ring.peers) id.members.push_back(peer.process);
    return id;
}

int rank_of(const wire::Welcome& ring, uint64_t process) {
    const auto at = std::ranges::find(ring.peers, process, &wire::Member::process);
    return at == ring.peers.end() ? -1 : int(at - ring.peers.begin());
}

void add_newcomers(wire::Welcome& base, const wire::Welcome& ring) {
    for (const wire::Member& peer : ring.peers)
        if (rank_of(base, peer.process) < 0) {
            base.peers.push_back(peer);
            base.ring.push_back(base.world++);
        }
}

Regroup::Regroup(const wire::Welcome& open, std::string why, Clock::time_point now)
    : open_(ring_id(open)), rules_(open.rules), why_(std::move(why)) {
    add(open, now);
}

void Regroup::add(const wire::Welcome& ring, Clock::time_point now) {
    for (const wire::Member& peer : ring.peers)
        if (std::ranges::find(ranks_, peer.process, &Rank::process) == ranks_.end())
            ranks_.push_back({.member = peer, .heard = now, .patience = rules_.silence()});
}

void Regroup::note_ring(const wire::RingId& ring) {
    if (ring.id != open_.id &&
        std::ranges::find(maybe_open_, ring.id, &wire::RingId::id) == maybe_open_.end())
        maybe_open_.push_back(ring);
}

void Regroup::maybe_open(const wire::Welcome& ring, Clock::time_point now) {
    add(ring, now);
    note_ring(ring_id(ring));
}

void Regroup::again(const wire::Welcome& ring, std::string why, Clock::time_point now) {
    rules_ = ring.rules;
    add(ring, now);
    for (Rank& r : ranks_) {
        if (r.is_back()) r.heard = now;
        r.seeks.reset();
        if (r.state == State::back) r.state = State::waited_for;
    }
    newcomers_.clear();
    why_ = std::move(why), steps_ = -1, planned_ = false;
}

void Regroup::cut(int rank, const std::string& why) {
    Rank& r = ranks_[size_t(rank)];
    if (r.state == State::back) r.state = State::waited_for;
    if (r.why.empty()) r.why = why;
}

void Regroup::back(int rank, const wire::Join& join) {
    Rank& r = ranks_[size_t(rank)];
    r.state = State::back, r.seeks.reset(), r.is_stray = false;
    r.open = join.open, r.open_generation = join.open_generation;
    for (const wire::RingId& ring : join.maybe_open) note_ring(ring);
    planned_ |= join.why.empty() && join.step >= 0;
    steps_ = std::max(steps_, join.step);
}

void Regroup::lives(int rank, bool seeks, Clock::time_point now) {
    Rank& r = ranks_[size_t(rank)];
    if (!seeks || now - r.answered >= kSilence) r.seeks.reset();
    if (seeks && !r.seeks) r.seeks = now;
    r.answered = now;
    r.is_stray = r.seeks && now - *r.seeks >= kStray + ranks_.size() * kAskPatience;
    if (!r.is_stray) heard(rank, now);
}

void Regroup::gone(int rank, const std::string& why, Clock::time_point now, bool certain) {
    Rank& r = ranks_[size_t(rank)];
    r.state = State::gone;
    r.silent = !certain || doubts_ || now - r.heard >= kSilence;
    r.why += cat(r.why.empty() ? "" : ", ", why);
}

void Regroup::excuse(Clock::duration late) {
    for (Rank& r : ranks_)
        if (r.patience > Clock::duration()) r.patience += late;
}

bool Regroup::is_false_alarm() const {
    return !planned_ && std::ranges::none_of(ranks_, [](const Rank& r) {
        return r.state == State::left || (r.state == State::gone && !r.silent);
    });
}

void Regroup::doubt(Clock::time_point now) {
    doubts_ = true;
    for (int rank = 0; rank < int(ranks_.size()); ++rank) lives(rank, false, now);
}

bool Regroup::is_behind(uint32_t generation, uint64_t process) const {
    return generation > open_.generation &&
           std::ranges::none_of(maybe_open_, [&](const wire::RingId& ring) {
               return ring.generation >= generation &&
                      std::ranges::count(ring.members, process) > 0;
           });
}

// The last ring that was open to any rank that is back, and later rings that may have been open.
std::vector<wire::RingId> Regroup::binding_rings() const {
    std::vector<wire::RingId> rings{open_};
    for (const Rank& r : ranks_) {
        if (!r.is_back() || r.open_generation <= rings[0].generation) continue;
        const auto at = std::ranges::find(maybe_open_, r.open, &wire::RingId::id);
        // Not found: this coordinator was not in that ring, and cannot have a majority of it.
        rings[0] = at != maybe_open_.end() ? *at : wire::RingId{r.open, r.open_generation, {0}};
    }
    for (const wire::RingId& ring : maybe_open_)
        if (ring.id != rings[0].id && ring.generation >= rings[0].generation) rings.push_back(ring);
    return rings;
}

Regroup::Count Regroup::count(const wire::RingId& ring) const {
    Count count;
    for (const uint64_t process : ring.members) {
        const auto r = std::ranges::find(ranks_, process, &Rank::process);
        const bool is_known = r != ranks_.end(), dead = is_known && r->state == State::gone;
        if (is_known && r->state == State::left) continue;
        if (dead && !r->silent) continue;  // for certain
        const bool is_back = is_known && r->is_back();
        if (count.back + count.absent == 0) count.has_lowest = is_back;
        count.back += is_back, count.absent += !is_back, count.dead += dead;
    }
    return count;
}

Regroup::Verdict Regroup::verdict(Clock::time_point now, std::string& why) {
    for (Rank& r : ranks_)
        if (r.state != State::gone) r.silent = now - r.heard >= r.patience;
    for (const Rank& r : ranks_)
        if (r.state == State::waited_for && !r.silent) return Verdict::wait;
    if (members().empty()) return Verdict::wait;
    if (rules_.alone) return Verdict::form;
    for (const wire::RingId& ring : binding_rings()) {
        const Count c = count(ring);
        if (c.absent == 0 || c.is_enough()) continue;
        why = cat(doubts_ ? "this process was stopped or heard nothing for a while; " : "", "only ",
                  counted(c.back, "rank"), " of ", c.back + c.absent, " ",
                  c.back == 1 ? "answers" : "answer", ", and the others may ",
                  c.dead == c.absent ? "have gone on without it" : "be training together");
        return c.dead == c.absent ? Verdict::behind : Verdict::cut_off;
    }
    return Verdict::form;
}

std::vector<int> Regroup::members() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < int(ranks_.size()); ++rank)
        if (ranks_[size_t(rank)].is_back()) ranks.push_back(rank);
    return ranks;
}

std::string Regroup::news() const {
    std::vector<std::pair<std::string, std::vector<wire::Member>>> fates;  // the same one together
    for (const Rank& r : ranks_) {
        if (r.is_back()) continue;
        std::string fate = r.state == State::left ? " left" : cat(" lost: ", r.why);
        if (r.state != State::gone && r.state != State::left && !r.why.starts_with("no sign"))
            fate += cat(r.why.empty() ? "" : ", ",
                        r.is_stray ? std::string(kNotConnected)
                                   : cat("no sign of life for ", rules_.silence_ms / 1000, " s"));
        auto same = std::ranges::find(fates, fate, &decltype(fates)::value_type::first);
        if (same == fates.end()) same = fates.insert(same, {fate, {}});
        same->second.push_back(r.member);
    }
    std::vector<std::string> parts;
    for (const auto& [fate, members] : fates) parts.push_back(rank_names(members) + fate);
    for (const std::string& name : newcomers_) parts.push_back(name + " joined");
    std::string lost = parts.empty() ? why_ : join_text(parts, "; ");
    const size_t ranks = members().size() + newcomers_.size();
    lost += cat("; ", counted(ranks, "rank"));
    if (steps_ < 0) return lost;  // nothing was trained yet
    if (!planned_) return cat(lost, ", step ", steps_ + 1, " redone");
    return cat(lost, ranks == 1 ? " goes" : " go", " on from step ", steps_ + 1);
}

std::string Regroup::waiting_text() const {
    std::vector<wire::Member> silent, strays;
    for (const Rank& r : ranks_)
        if (r.state == State::waited_for)
            (r.seeks && !r.silent ? strays : silent).push_back(r.member);
    std::string names = silent.empty() ? "" : rank_names(silent);
    if (!strays.empty())
        names += cat(names.empty() ? "" : ", ", rank_names(strays), ", but ", kNotConnected);
    return cat("waiting for ", names.empty() ? "the ranks that are back" : names);
}

}  // namespace convoy
