// roster.h — who has come to a job, who may stay, and who gets which rank. No sockets here.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "net/wire.h"

namespace convoy {

// "rank 2 (10.0.0.7:29401)", or "a rank (10.0.0.7:29401)" before it has a number.
std::string rank_name(int rank, const std::string& address);

class Roster {
 public:
    // `world`: ranks of the job, 0 until somebody says so. `coordinator` is this coordinator's own
    // number, by which it knows the rank that lives in its process. `previous`: the ranks each
    // host had in the job before; who comes again without a wish gets its old one.
    Roster(int world, uint64_t coordinator, std::map<std::string, std::vector<int>> previous);

    struct Refusal {
        int id;
        std::string why;
    };
    // Adds member `id`; returns those who cannot stay, already taken out: the newcomer, or earlier
    // ones whom the word of rank 0, now here, contradicts.
    std::vector<Refusal> add(int id, wire::Join join);
    void remove(int id);

    size_t size() const { return members_.size(); }
    bool complete() const { return world() > 0 && int(members_.size()) == world(); }
    // "3 of 4 joined, missing rank 2"
    std::string status() const;

    struct Seating {
        std::vector<int> ids;   // of the members, by rank
        wire::Welcome welcome;  // all but `rank` and `job`
        uint32_t stall_ms = 0;  // as rank 0 said
    };
    // The ranks of a complete roster. Wishes are kept; rank 0, where nobody wants it, goes to the
    // member in the coordinator's process, else to the first that came; the other free ranks go
    // out host by host in order of arrival. Ring order keeps the ranks of a host together.
    Seating seat() const;

 private:
    struct Member {
        int id;
        wire::Join join;
    };
    int world() const;
    const Member* zero() const;
    const Member* who_says_world() const;
    std::string objection(const Member& member) const;

    int world_;
    uint64_t coordinator_;
    std::map<std::string, std::vector<int>> previous_;
    std::vector<Member> members_;  // in order of arrival
};

}  // namespace convoy
