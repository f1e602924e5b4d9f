// membership.h — this process's place in a job: the control thread with its one connection to the
// coordinator (and the coordinator itself, where rank 0 serves it), heartbeats, and the end.
//
// The control thread never computes and never waits for a collective, so that heartbeats go out
// however long a kernel runs or a neighbour dawdles.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "net/communicator.h"
#include "net/coordinator.h"
#include "net/job_status.h"
#include "net/listener.h"

namespace convoy {

// Where this rank is. Written by the threads that work, read by the heartbeat.
struct Progress {
    std::atomic<int64_t> step{0};
    std::atomic<Phase> phase{Phase::kStart};
    std::atomic<std::chrono::steady_clock::time_point> since{};
    std::atomic<uint64_t> begun{0}, done{0}, moved{0};

    wire::Beat beat() const;
};

// A connection that began with EDGE, until somebody takes it up.
struct IncomingEdge {
    tcp::socket socket;
    wire::Edge edge;
    uint32_t generation;
};

class Membership {
 public:
    Membership(Log& log, std::chrono::milliseconds heartbeat);
    // Says what is still to be said (a second at most), then ends the control thread.
    ~Membership();
    Membership(const Membership&) = delete;

    asio::io_context& io() { return io_; }
    Listener& listener() { return listener_; }
    std::vector<IncomingEdge>& incoming_edges() { return incoming_edges_; }
    Log& log() { return log_; }
    JobStatus& status() { return status_; }
    Progress& progress() { return progress_; }
    std::chrono::milliseconds heartbeat() const { return heartbeat_; }

    // The three below run on the control thread.
    // Serves a coordinator in this process: JOINs at the listener go to it.
    void serve(int world);
    uint64_t coordinator_number() const { return coordinator_ ? coordinator_->number() : 0; }
    // Heartbeats on `connection` from now on; with `welcome`, its messages are heeded too.
    void keep_alive(std::shared_ptr<Connection> connection);
    void attend(std::shared_ptr<Connection> connection, const wire::Welcome& welcome);

    bool stands() const { return stands_; }  // GENERATION has come
    // Waits for the next message or incoming edge; false if none came within `patience`.
    asio::awaitable<bool> wait_for_news(std::chrono::milliseconds patience);

    // From any thread. abort() ends the job here at once and tells the others, blaming rank `lost`
    // (-1: this one). report() waits for the coordinator's word first, who may have heard of
    // another cause before; not for the control thread.
    void send(std::string message);
    void abort(int lost, const std::string& why) noexcept;
    void report(int lost, const std::string& why) noexcept;
    void leave() noexcept;

 private:
    asio::awaitable<void> listen_to_coordinator();
    asio::awaitable<void> beat(std::shared_ptr<Connection> connection);
    void handle(const Message& message);
    void send_abort(int lost, const std::string& why) noexcept;
    void end_here(int lost, const std::string& why) noexcept;
    void coordinator_lost(const std::string& why);
    asio::awaitable<void> drain();
    bool run_and_wait(std::chrono::milliseconds patience, asio::awaitable<void> work) noexcept;

    Log& log_;
    std::chrono::milliseconds heartbeat_;
    JobStatus status_;
    Progress progress_;
    wire::Welcome welcome_;
    bool stands_ = false, left_ = false, answer_due_ = false, silence_said_ = false;
    std::chrono::steady_clock::time_point heard_;

    // Before everything that holds sockets: those must go first.
    asio::io_context io_{1};
    asio::executor_work_guard<asio::io_context::executor_type> busy_{io_.get_executor()};
    asio::steady_timer news_{io_};
    Listener listener_;
    std::vector<IncomingEdge> incoming_edges_;
    std::unique_ptr<Coordinator> coordinator_;
    std::shared_ptr<Connection> connection_;
    std::thread thread_;
};

}  // namespace convoy
