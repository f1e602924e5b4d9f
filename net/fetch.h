// fetch.h — bytes that one rank reads from another, over connections of their own beside the ring.
//
// Once the ring is open, any rank may dial any other at its port, with EDGE. Whoever dials asks,
// the other answers each request in its turn:
//
//   fetch() ─► queue of that rank ─► its thread: kInFlight requests ahead ─► REQUEST
//   future  ◄─────────────────────── bytes, straight to where they belong ◄─ BYTES or REFUSE
//
// Each connection has a thread at both ends, so neither the ring nor heartbeats wait for it.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "net/communicator.h"
#include "net/link.h"
#include "net/membership.h"

namespace convoy {

class RankFetcher final : public Fetcher {
 public:
    using Dial = std::function<asio::awaitable<Link>(int rank, bool group)>;
    // Answers requests from now on. Rank, world and job are those of `me`; `dial` runs on the
    // control thread. The membership must outlive the fetcher.
    RankFetcher(Membership& membership, const wire::Welcome& me, Dial dial, ServeBytes serve);
    ~RankFetcher() override;

    std::future<void> fetch(int rank, uint32_t file, uint64_t offset, std::span<std::byte> bytes,
                            int line) override;
    // An edge to another rank of a group, both of which call this. Blocks; throws Error.
    Link group_link(int rank);
    void shut() noexcept;  // every request fails from now on; any thread
    void close();          // ends its threads; before it is destroyed

 private:
    struct Asker;  // the requests to one rank
    struct Server {
        Link link;
        std::thread thread;
    };
    Link dial(int rank, bool group);
    void accept(Socket socket, const wire::Edge& edge);
    void answer(Link& link, const wire::Edge& edge);
    void set_on_edge(std::function<void(Socket, wire::Edge)> on_edge);

    Membership& membership_;
    const wire::Welcome me_;
    const Dial dial_;
    const ServeBytes serve_;
    std::mutex mutex_;  // guards what follows
    bool shut_ = false;
    std::map<std::pair<int, int>, std::unique_ptr<Asker>> askers_;  // by rank and line
    std::vector<std::unique_ptr<Server>> servers_;
    std::map<int, Link> group_;  // that others have dialled
    std::condition_variable group_changed_;
};

}  // namespace convoy
