// coordinator.h — gathers the ranks of a job, gives them their numbers, receives their heartbeats,
// and tells all of them the first cause when one is lost. Gradients do not pass here.
//
//   gathering ──all joined──► forming ──all edges open──► running ──all left, or an abort──► over
//       ▲                        ▲ │                         │                                 │
//       │                        │ └─────── a rank lost ─────┤                                 │
//       │                        └── survivors back ── regrouping (--elastic)                  │
//       └──────────────────────────────── the next job ────────────────────────────────────────┘
//
// What follows a loss is in coordinator_again.cpp; who goes on is decided in regroup.h. If this
// process is lost, the lowest surviving rank serves a coordinator that begins in `regrouping`.
//
// It runs on an io_context of one thread, in the process of rank 0 or in its own (`./trainer
// coordinator`).
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "net/connection.h"
#include "net/listener.h"
#include "net/regroup.h"
#include "net/roster.h"
#include "net/stall.h"
#include "src/base/clock.h"

namespace convoy {

// Tells coordinators, jobs and processes apart; never 0. Training does not depend on it.
uint64_t fresh_id();

// The answer to a newcomer that asks for `job`: OFFER, or REFUSE.
std::string offer_message(const wire::Welcome& job, const std::string& what);

class Coordinator {
 public:
    struct Options {
        int world = 0;  // 0: the ranks give it
        std::chrono::milliseconds heartbeat{1'000};
        bool verbose = false;      // log what happens (a coordinator in a process of its own)
        uint64_t process = 0;      // this one's, if a rank runs in it
        tcp::endpoint first = {};  // where the job's first coordinator was; none: here
        Pause pause = {};
        TlsContext tls = {};
        bool server_left = false;  // the coordinator before was not lost: its rank has left
        bool cut_off = false;      // it was silent: perhaps this process is what was lost
        // Of a part of the job that was cut off.
        std::chrono::milliseconds patience = lone_patience;
        std::set<uint64_t> dead = {};  // processes, for certain
    };
    static std::chrono::milliseconds round_trip;  // 0; tests: as if probes took longer

    Coordinator(asio::io_context& io, Options options, LogQueue& log);
    // What a rank knows of the rings of its job.
    struct Rings {
        wire::Welcome last;  // that it was welcome to
        wire::Welcome open;  // the last that was open to it; if none, the first
        std::vector<wire::Welcome> attempts = {};  // for which it was ready since
    };
    // Succeeds the coordinator of the last ring, which was lost.
    Coordinator(asio::io_context& io, Options options, LogQueue& log, const Rings& rings,
                const std::string& why);

    // A rank whose JOIN carries this id runs in the same process.
    uint64_t id() const { return id_; }
    // Takes over a connection that began with `join`.
    void add(Socket socket, wire::Join join);
    // Likewise of a rank whose connection broke; the answer is STATUS or REFUSE.
    void add_again(Socket socket, const wire::Rejoin& rejoin);
    bool has_formed() const { return stage_ == Stage::forming || stage_ == Stage::running; }
    // Hangs up on all ranks and serves no job any more.
    void retire();
    // Where the job is, for a newcomer; REFUSE where it can take in none.
    std::string offer() const;
    // Tells the ranks that the coordinator ends normally.
    void send_leave();
    // How the jobs stand, for `trainer health`. The coordinator itself is healthy while it answers.
    wire::Health health() const;
    // Whether all messages have left this process.
    bool drained() const;

 private:
    enum class Stage { gathering, forming, running, regrouping };
    struct Client {
        std::string name() const { return rank_name(rank < 0 ? join.rank : rank, join.address); }
        int id, rank = -1;
        uint64_t job = 0;
        wire::Join join;
        Clock::time_point heard;
        bool ready = false, accuses = false, left = false, silent = false, refused = false;
        std::shared_ptr<Connection> connection;
    };
    using ClientPtr = std::shared_ptr<Client>;

    asio::awaitable<void> serve(ClientPtr client);
    void handle(Client& client, const Message& message);
    void disconnected(Client& client, const std::string& why);
    void refuse(Client& client, bool again, const std::string& why);
    void remove(Client& client);
    bool tell_status(const std::string& news, const std::string& status);
    void turn_out(ClientPtr client);
    void assign_ranks();
    void welcome_all();
    void break_ring(int lost, const std::string& why);
    void back_to_base(const std::string& why);
    void back(Client& client, const wire::Rejoin& rejoin);
    void decide();
    void wait_for_others(const std::string& why);
    void end_part(const std::string& text);
    bool own_rank_left() const;
    void form_again();
    void take_in_newcomers();
    asio::awaitable<void> visit(ClientPtr newcomer);
    void call_for_newcomers();
    void leave_behind(Client& client, const std::string& why);
    asio::awaitable<void> probe(int rank, int broken);
    asio::awaitable<void> judge(int from, int to, uint32_t generation, std::string why);
    void lose(const std::vector<int>& ranks, const std::string& why, bool certain = true);
    void hurry(Clock::time_point now);
    std::vector<std::string> names() const;
    bool elastic() const { return stage_ != Stage::gathering && welcome_.rules.elastic; }
    void stop_job(int lost, const std::string& why, wire::End end = wire::End::job);
    void next_job();
    void broadcast(const std::string& message);
    void notice(const std::string& text);
    void log(const std::string& text);
    asio::awaitable<void> tick();
    void check_silence(Client& client, Clock::time_point now);
    void give_up(Clock::time_point now);
    void tell_wait(Clock::time_point now);

    asio::io_context& io_;
    Options options_;
    LogQueue& log_;
    uint64_t id_, job_;
    uint32_t generation_ = 1;
    int broken_ = 0;  // rings so far
    Stage stage_ = Stage::gathering;
    int next_id_ = 0;
    std::map<std::string, std::vector<int>> previous_;  // host → its ranks in the last job
    Roster roster_;
    Refusals refused_, told_{60};  // who was refused, and who came or went while it gathers
    bool is_told_ = true;          // all know who is here now
    wire::Welcome welcome_;        // of the generation; while regrouping, who may be in the next
    wire::Welcome base_;           // while forming: welcome_ before, if there was one
    Regroup regroup_;
    Clock::time_point due_;                         // for ranks that form the ring to do their part
    std::optional<Clock::time_point> cut_off_;      // this part of the job waits for the others
    std::optional<Clock::time_point> waits_since_;  // for a new ring; when that is told next
    std::chrono::milliseconds tell_wait_{};
    bool own_rank_failed_ = false;  // the rank in this process, which ends soon
    Pause pause_;
    StallWatch watch_;
    std::vector<ClientPtr> clients_;    // of the current job, in order of arrival
    std::vector<ClientPtr> former_;     // of earlier jobs, until they hang up
    std::vector<ClientPtr> newcomers_;  // who wait to be taken in
};

}  // namespace convoy
