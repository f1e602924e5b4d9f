#include "net/control/roster.h"

#include <algorithm>
#include <numeric>

#include "src/base/text.h"

namespace convoy {

std::string rank_name(int rank, const std::string& address) {
    return rank < 0 ? cat("a rank (", address, ")") : cat("rank ", rank, " (", address, ")");
}

std::string rank_names(const std::vector<wire::Member>& members) {
    std::vector<std::string> names;
    std::vector<int> numbers;
    for (const wire::Member& member : members)
        names.push_back(rank_name(member)), numbers.push_back(member.number);
    std::ranges::sort(numbers);
    return names.size() <= kMostNames ? join_text(names) : cat("ranks ", ranges_text(numbers));
}

const Roster::Member* Roster::who_says_world() const {
    for (const Member& m : members_)
        if (m.join.rank == 0 && m.join.world > 0) return &m;
    for (const Member& m : members_)
        if (m.join.world > 0) return &m;
    return nullptr;
}

int Roster::world() const {
    if (world_ > 0) return world_;
    const Member* m = who_says_world();
    return m ? m->join.world : 0;
}

// Why `member` is refused; "" if it is not.
std::string Roster::why_refused(const Member& member) const {
    const std::string who = rank_name(member.join.rank, member.join.address);
    const int world = this->world();
    if (member.join.world > 0 && member.join.world != world) {
        const Member* other = who_says_world();
        return cat(
            who, " says --world ", member.join.world, ", ",
            world_ > 0 ? "the coordinator" : rank_name(other->join.rank, other->join.address),
            " says --world ", world);
    }
    if (world > 0 && member.join.rank >= world)
        return cat(who, " cannot be in a world of ", world, ": its ranks are 0 to ", world - 1);
    for (const Member& other : members_) {
        if (&other == &member) break;  // later members do not count
        if (other.join.rank >= 0 && other.join.rank == member.join.rank)
            return cat("rank ", member.join.rank, " is wanted by both ", other.join.address,
                       ", which was first, and ", member.join.address,
                       ": give each its own --rank, or none");
        if (other.join.process == member.join.process)
            return cat(who, " says that it is the process at ", other.join.address);
    }
    if (world > 0 && int(&member - members_.data()) >= world)
        return cat(who, " is one too many: all ", world, " ranks are here");
    return "";
}

std::vector<Roster::Refusal> Roster::add(int id, wire::Join join) {
    const int before = world();
    members_.push_back({id, std::move(join)});
    std::vector<Refusal> refused;
    // From the start after each removal, which may change the world.
    for (size_t i = world() == before ? members_.size() - 1 : 0; i < members_.size();)
        if (std::string why = why_refused(members_[i]); why.empty()) {
            ++i;
        } else {
            refused.push_back({members_[i].id, std::move(why)});
            members_.erase(members_.begin() + i);
            i = i == members_.size() && world() == before ? i : 0;
        }
    return refused;
}

void Roster::remove(int id) {
    std::erase_if(members_, [id](const Member& m) { return m.id == id; });
}

std::string Roster::status() const {
    const int world = this->world();
    if (world == 0) return cat(members_.size(), " joined, but none has said --world");
    std::string text = cat(members_.size(), " of ", world, " joined");
    if (complete()) return text;
    std::vector<bool> here(world, false);
    for (const Member& m : members_) {
        // Until a member without a number gets one, it is not known which numbers are missing.
        if (m.join.rank < 0) return cat(text, ", missing ", world - int(members_.size()), " more");
        here[m.join.rank] = true;
    }
    std::vector<int> missing;
    for (int r = 0; r < world; ++r)
        if (!here[r]) missing.push_back(r);
    return cat(text, ", missing rank ", ranges_text(missing));
}

Roster::Assignment Roster::assign_ranks() const {
    const int world = this->world();
    std::vector<const Member*> at(world, nullptr);
    for (const Member& m : members_)
        if (m.join.rank >= 0) at[m.join.rank] = &m;

    std::vector<const Member*> open;
    for (const Member& m : members_)
        if (m.join.rank == -1) open.push_back(&m);
    const auto place = [&](size_t i, int rank) {
        at[rank] = open[i];
        open.erase(open.begin() + i);
    };
    if (!at[0]) {
        const auto serves = [this](const Member* m) { return m->join.process == server_; };
        const auto server = std::ranges::find_if(open, serves);
        place(server == open.end() ? 0 : server - open.begin(), 0);
    }
    for (int rank = 0; rank < world; ++rank) {  // host by host
        if (at[rank]) continue;
        const std::string& neighbour = rank > 0 ? at[rank - 1]->join.host : open[0]->join.host;
        size_t i = 0;
        for (size_t k = open.size(); k-- > 0;)
            if (open[k]->join.host == neighbour) i = k;
        place(i, rank);
    }

    Assignment assignment;
    wire::Welcome& w = assignment.welcome;
    w.world = world;
    w.rules = at[0]->join.rules;
    for (int rank = 0; rank < world; ++rank) {
        assignment.ids.push_back(at[rank]->id);
        const wire::Join& join = at[rank]->join;
        w.peers.push_back({join.host, join.address, join.process, rank});
    }
    std::vector<int> by_rank(w.peers.size());
    std::iota(by_rank.begin(), by_rank.end(), 0);
    w.ring = ring_order(w.peers, by_rank);
    return assignment;
}

std::vector<int> ring_order(const std::vector<wire::Member>& peers, const std::vector<int>& order) {
    std::vector<int> ring;
    for (const int first : order)
        for (const int rank : order)
            if (peers[size_t(rank)].host == peers[size_t(first)].host &&
                std::ranges::find(ring, rank) == ring.end())
                ring.push_back(rank);
    return ring;
}

}  // namespace convoy
