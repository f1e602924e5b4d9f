// roster.h — which ranks have joined a job, which are refused, and who gets which rank. No sockets.
#pragma once

#include <string>
#include <vector>

#include "net/control/wire.h"

namespace convoy {

// "rank 2 (10.0.0.7:29401)", or "a rank (10.0.0.7:29401)" before it has a number.
std::string rank_name(int rank, const std::string& address);
inline std::string rank_name(const wire::Member& member) {
    return rank_name(member.number, member.address);
}
// "rank 2 (10.0.0.7:29401), rank 5 (…)", or "ranks 2, 5-9" if they are many.
std::string rank_names(const std::vector<wire::Member>& members);

// Ranks in ring order: in the order of `order` (all ranks), but ranks of one host stay together.
std::vector<int> ring_order(const std::vector<wire::Member>& peers, const std::vector<int>& order);

class Roster {
 public:
    // `world`: ranks of the job; 0: a member gives the number. `server`: the process of the rank
    // that serves the coordinator.
    Roster(int world, uint64_t server) : world_(world), server_(server) {}

    struct Refusal {
        int id;
        std::string why;
    };
    // Adds member `id`. Returns the refused members, which are already removed: the new member, or,
    // if the new member is rank 0, earlier members that gave another world.
    std::vector<Refusal> add(int id, wire::Join join);
    void remove(int id);

    bool complete() const { return world() > 0 && int(members_.size()) == world(); }
    // "3 of 4 joined, missing rank 2"
    std::string status() const;

    struct Assignment {
        std::vector<int> ids;   // of the members, by rank
        wire::Welcome welcome;  // all but `job`, `rank` and `server`
    };
    // The ranks of a complete roster. Members get the rank they asked for. If nobody asked for rank
    // 0, the rank that serves the coordinator gets it, else the first member that joined. The other
    // free ranks are assigned host by host in order of arrival. Ring order keeps the ranks of a
    // host together.
    Assignment assign_ranks() const;

 private:
    struct Member {
        int id;
        wire::Join join;
    };
    int world() const;
    const Member* who_says_world() const;
    std::string why_refused(const Member& member) const;

    int world_;
    uint64_t server_;
    std::vector<Member> members_;  // in order of arrival
};

}  // namespace convoy
