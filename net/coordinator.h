// coordinator.h — the one that all ranks know: gathers them, seats them, hears their heartbeats,
// and tells every one of them the first cause when one is lost.
//
//   gathering ──all joined──► forming ──all edges stand──► running ──all left, or an abort──► over
//       ▲                                                                                       │
//       └───────────────────────────────── the next job ────────────────────────────────────────┘
//
// It lives on an io_context of one thread, either in the process of rank 0 or in its own
// (`./trainer coordinator`), and never sees a gradient.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "net/connection.h"
#include "net/roster.h"
#include "net/stall.h"
#include "src/base/log.h"

namespace convoy {

class Coordinator {
 public:
    struct Options {
        int world = 0;  // 0: the ranks say so
        std::chrono::milliseconds heartbeat{1'000};
        bool say_so = false;  // put what happens on the log (a coordinator on its own)
    };
    Coordinator(asio::io_context& io, Options options, Log& log);

    // Its number: a rank whose JOIN carries it lives in the same process.
    uint64_t number() const { return number_; }
    // Takes over a connection that began with `join`.
    void take(tcp::socket socket, wire::Join join);
    // Tells the ranks that the coordinator goes in order.
    void say_goodbye();
    // Whether all that was to be said has left this process.
    bool drained() const;

 private:
    enum class Stage { gathering, forming, running };
    struct Client {
        int id, rank = -1;
        uint64_t job;
        int wanted = -1;
        std::string host, address;
        std::chrono::milliseconds heartbeat;
        std::chrono::steady_clock::time_point heard;
        bool ready = false, left = false, silent = false;
        std::shared_ptr<Connection> connection;
    };
    using ClientPtr = std::shared_ptr<Client>;

    asio::awaitable<void> serve(ClientPtr client);
    void handle(Client& client, const Message& message);
    void gone(Client& client, const std::string& why);
    void refuse(Client& client, bool again, const std::string& why);
    void seat();
    void stop_job(int lost, const std::string& why);
    void next_job();
    void broadcast(const std::string& message);
    void notice(const std::string& text);
    void say(const std::string& text);
    asio::awaitable<void> tick();
    void check_silence(Client& client, std::chrono::steady_clock::time_point now);

    asio::io_context& io_;
    Options options_;
    Log& log_;
    uint64_t number_, job_;
    uint32_t generation_ = 1;
    Stage stage_ = Stage::gathering;
    int next_id_ = 0;
    std::map<std::string, std::vector<int>> previous_;  // host → its ranks in the last job
    Roster roster_;
    StallWatch watch_;
    std::vector<ClientPtr> clients_;  // of the current job, in order of arrival
    std::vector<ClientPtr> former_;   // of jobs that are over, until they hang up
};

}  // namespace convoy
