// roster.h — which ranks have joined a job, which are refused, and who gets which rank. No sockets.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "net/wire.h"

namespace convoy {

// "rank 2 (10.0.0.7:29401)", or "a rank (10.0.0.7:29401)" before it has a number.
std::string rank_name(int rank, const std::string& address);

// Ranks in ring order: as in `order`, which has all of them, but those of a host together.
std::vector<int> ring_order(const std::vector<wire::Member>& peers, const std::vector<int>& order);

class Roster {
 public:
    // `world`: ranks of the job; 0: the members give it. `coordinator`: the id of the coordinator,
    // by which it knows the rank in its own process. `previous`: the ranks each host had in the job
    // before; a member that asks for none gets the old one of its host.
    Roster(int world, uint64_t coordinator, std::map<std::string, std::vector<int>> previous);

    struct Refusal {
        int id;
        std::string why;
    };
    // Adds member `id`. Returns those that are refused and already removed: the new one, or
    // earlier ones that contradict rank 0 where rank 0 is the new one.
    std::vector<Refusal> add(int id, wire::Join join);
    void remove(int id);

    bool complete() const { return world() > 0 && int(members_.size()) == world(); }
    // "3 of 4 joined, missing rank 2"
    std::string status() const;

    struct Assignment {
        std::vector<int> ids;   // of the members, by rank
        wire::Welcome welcome;  // all but `rank` and `job`
    };
    // The ranks of a complete roster. Members get the rank they asked for. Rank 0, where nobody
    // asked for it, goes to the member in the coordinator's process, else to the first that joined.
    // The other free ranks go out host by host in order of arrival. Ring order keeps the ranks of a
    // host together.
    Assignment assign_ranks() const;

 private:
    struct Member {
        int id;
        wire::Join join;
    };
    int world() const;
    const Member* rank0() const;
    const Member* who_says_world() const;
    std::string why_refused(const Member& member) const;

    int world_;
    uint64_t coordinator_;
    std::map<std::string, std::vector<int>> previous_;
    std::vector<Member> members_;  // in order of arrival
};

}  // namespace convoy
