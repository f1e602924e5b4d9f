// ring_shared.cpp — the ring where ranks of one host share memory: a sum goes through the memory of
// each host, then once around the hosts, then through the memory again.
#include <algorithm>
#include <system_error>

#include "net/control/roster.h"
#include "net/ring/ring.h"
#include "src/base/text.h"

namespace convoy {

std::vector<std::vector<int>> hosts_of(const std::vector<int>& ring,
                                       const std::vector<wire::Member>& peers) {
    std::vector<std::vector<int>> hosts;
    for (const int rank : ring) {
        if (hosts.empty() || peers[size_t(hosts.back().front())].host != peers[size_t(rank)].host)
            hosts.emplace_back();
        hosts.back().push_back(rank);
    }
    return hosts;
}

std::pair<std::string, bool> Ring::share_memory(const std::vector<wire::Member>& peers) {
    const auto hosts = hosts_of(ring_, peers);
    const int me = at(position_);
    const std::vector<int> mine = *std::ranges::find_if(
        hosts, [&](const auto& host) { return std::ranges::find(host, me) != host.end(); });
    const size_t bytes = SharedSum::bytes_for(mine.size());
    std::vector<MemoryTicket> tickets(ring_.size());
    std::vector<int32_t> errors(ring_.size(), 0);  // errno
    SharedMemory memory;
    for (const bool first : {true, false}) {
        if (mine.size() > 1 && (mine.front() == me) == first) try {
                memory = first ? create_memory(bytes, tickets[size_t(me)])
                               : open_memory(bytes, tickets[size_t(mine.front())]);
            } catch (const std::system_error& e) {
                errors[size_t(me)] = e.code().value();
            }
        if (first) gather_each(tickets);
    }
    gather_each(errors);

    std::vector<std::string> news;
    bool all = true;
    for (const auto& host : hosts) {
        const auto failed =
            std::ranges::find_if(host, [&](int rank) { return errors[size_t(rank)] != 0; });
        const bool share = failed == host.end();
        hosts_.insert(hosts_.end(), host.begin(), share ? host.begin() + 1 : host.end());
        has_all_links_ &= share || host.size() == 1;
        if (host.size() == 1) continue;
        std::vector<int> numbers;
        for (const int rank : host) numbers.push_back(peers[size_t(rank)].number);
        std::ranges::sort(numbers);
        news.push_back(cat("ranks ", ranges_text(numbers), " of one host ",
                           share ? "sum in shared memory" : "do not share memory: rank "));
        if (!share) {
            const bool made = *failed != host.front();
            news.back() += cat(
                *failed, made ? cat(" cannot open that of rank ", host.front()) : " cannot make it",
                ": ", std::generic_category().message(errors[size_t(*failed)]),
                "; they use the ring. Ranks of one user in one container can share memory");
        }
        all &= share;
        if (!share || host != mine) continue;
        std::vector<SharingRank> ranks;
        for (const int rank : host) ranks.push_back({rank, rank_name(peers[size_t(rank)])});
        host_ = std::make_unique<SharedSum>(std::move(memory),
                                            size_t(std::ranges::find(host, me) - host.begin()),
                                            std::move(ranks), shut_, record_.moved);
        host_->limit = record_.limit;
        host_->look = [this] {
            for (const Link& link : links_)
                if (link.is_open() && link.has_ended())
                    throw LinkLost(cat("the connection to ", link.peer(), " was closed"));
        };
    }
    if (hosts_.size() == ring_.size()) hosts_.clear(), has_all_links_ = true;
    const auto place = std::ranges::find(hosts_, me);
    host_position_ = place == hosts_.end() ? -1 : int(place - hosts_.begin());
    return {join_text(news, "; "), all};
}

static constexpr TraceName kTraceSharedSum{"sum in shared memory", "network", "collective",
                                           "bytes"};

void Ring::sum_by_host(std::span<float> data) {
    const uint32_t number = number_ + 1;
    const auto span = [&] {
        return Span(host_ ? record_.sent_track.load() : nullptr, kTraceSharedSum, number,
                    double(data.size_bytes()));
    };
    const bool alone = hosts_.size() == 1;
    if (const Span shared = span(); host_) host_->sum(number, data, alone);
    if (!alone && host_position_ >= 0) {
        std::swap(ring_, hosts_), std::swap(position_, host_position_);
        sum_large(data);
        std::swap(ring_, hosts_), std::swap(position_, host_position_);
    }
    number_ = number;
    if (alone || !host_) return;
    const Span shared = span();
    host_->spread(data);
}

}  // namespace convoy
