// membership.h — this process's part in a job: the control thread with its one connection to the
// coordinator (and the coordinator itself, if this rank serves it), heartbeats, and the job's end.
// elastic.md draws its states.
//
// The control thread never computes and never waits for a collective, so that heartbeats leave in
// time however long a kernel runs or a neighbour takes.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "net/control/coordinator_shell.h"
#include "net/control/ids.h"
#include "net/control/job_status.h"
#include "net/control/join_options.h"
#include "net/control/listener.h"
#include "src/base/clock.h"

namespace convoy {

// Where a rank is on its way into a ring. JobStatus says whether that ring has ended.
enum class RankState {
    kJoining,     // it asks for the coordinator of the next ring, or waits there for WELCOME
    kConnecting,  // it opens its links
    kReady,       // its links are open
    kOpen,        // all links of the ring are open
    kLeft         // it has left the job
};

// This rank's step and phase. Written by the working threads, read for the heartbeats.
struct Progress {
    std::atomic<int64_t> step{0};
    std::atomic<Phase> phase{Phase::kStart};
    std::atomic<Clock::time_point> since{};
    std::atomic<uint64_t> begun{0}, done{0}, moved{0};

    wire::Heartbeat heartbeat() const;
};

// A connection that began with LINK and has not been used yet.
struct IncomingLink {
    Socket socket;
    wire::Link link;
};

class Membership {
 public:
    Membership(Log& log, const JoinOptions& options);
    // Sends the messages that wait (for a second at most), then ends the control thread.
    ~Membership();
    Membership(const Membership&) = delete;

    asio::io_context& io() { return io_; }
    Listener& listener() { return listener_; }
    const TlsContext& tls() const { return listener_.tls(); }
    const tcp::endpoint& first() const { return first_; }  // the job's first coordinator
    uint64_t process() const { return process_; }
    LogQueue& log() { return log_; }
    JobStatus& status() { return status_; }
    Progress& progress() { return progress_; }

    // The functions from here to wait_for_news() run on the control thread.
    RankState state() const { return state_; }
    const wire::Welcome& welcome() const { return welcome_; }  // to the newest ring
    std::vector<IncomingLink>& incoming_links() { return incoming_links_; }
    // What this rank waits for before the first WELCOME, for health().
    void set_joining(const std::string& text) { joining_ = text; }
    const std::string& joining() const { return joining_; }
    // Why the last connection to a coordinator ended before the first WELCOME.
    const wire::Refuse& refusal() const { return refusal_; }
    // Serves a coordinator in this process: JOINs at the listener go to it.
    void serve(int world);
    // Uses this connection to the coordinator from now on. `first` is the first message on it.
    void use(std::shared_ptr<Connection> connection, const Message& first);
    bool connected() const { return connection_ && connection_->is_open(); }
    bool coordinator_is_silent() const { return Clock::now() > silent_at_; }
    std::chrono::milliseconds silence() const { return welcome_.rules.silence(); }
    // A newcomer that asks to be added to a job: `job` as it knows it, this rank after the others.
    // Until it calls offer(), an error of this rank is no failure of the job.
    void visit(const wire::Welcome& job, const tcp::endpoint& first);

    // kJoining: leaves the ring, and returns why it broke. Throws Error if the job has ended.
    std::string leave_ring();
    wire::Join join_message(int64_t step, const std::string& why) const;
    // Succeeds the coordinator that was lost; not a newcomer whose first ring is not open yet.
    void succeed(const std::string& why);
    // The coordinator in this process, if any, has sent WELCOME to a ring.
    bool has_formed() const { return coordinator_ && coordinator_->coordinator().has_formed(); }
    void retire();  // serves no coordinator any more: its ranks find another one
    // The process of a rank of the ring that broke refuses connections.
    void refused(int rank) { note_death(welcome_.peers[size_t(rank)].process, in_ring_); }
    void ready();  // kReady
    // Waits for the next message or incoming link; false if none came within `patience`.
    asio::awaitable<bool> wait_for_news(std::chrono::milliseconds patience);

    // From any thread. From now on a signal ends long waits for other ranks.
    void watch_signals(std::function<int()> stop) {
        asio::post(io_, [this, stop] { stop_ = stop; });
    }
    // From any thread: Communicator::on_stall.
    void on_stall(std::function<void(const std::string&)> then) {
        std::lock_guard lock(stall_mutex_);
        on_stall_ = std::move(then);
    }
    // Any thread may call these. offer() sets what newcomers are told from now on. A newcomer that
    // calls it has become a rank like the others.
    void offer(std::string what);
    bool newcomer_waits() const { return newcomer_waits_; }
    // Any thread may call these. abort() ends the job at once and tells the others. report() first
    // gives the coordinator time to name an earlier cause, so the control thread must not call it;
    // `lost` is the rank to blame (-1: this rank).
    void send(std::string message);
    void abort(const std::string& why) noexcept;
    void report(int lost, const std::string& why) noexcept;
    void fail_alone(const std::string& why) noexcept;  // see Communicator
    // A link of the ring is broken: the ring has ended, or the job, if it is not elastic.
    void link_lost(const std::string& why) noexcept;
    void leave() noexcept;

 private:
    bool has_no_ring() const { return welcome_.peers.empty(); }  // and had none before
    void serve(Coordinator coordinator);
    asio::awaitable<void> read_messages(std::shared_ptr<Connection> connection);
    asio::awaitable<void> heartbeats(std::shared_ptr<Connection> connection);
    void handle(const Message& message);
    void enter(const wire::Welcome& welcome);  // kConnecting
    void handle_abort(const wire::Abort& abort);
    void handle_leave();
    asio::awaitable<void> note_deaths();
    void note_death(uint64_t process, Clock::time_point in_touch);
    asio::awaitable<void> watch_clock();
    void note_pause();
    void heard();
    void end_on_signal();
    void back_to_base();
    void ring_broken(uint32_t generation, const std::string& why, int lost) noexcept;
    std::string offer_message() const;  // the answer to OFFER
    // The answer to HEALTH. A rank is unhealthy if the job waits for it, or if its job has ended.
    wire::Health health() const;
    wire::Health state_of_health() const;
    void send_last(std::string message) noexcept;
    void end_job(int lost, const std::string& why) noexcept;
    void coordinator_lost(const std::string& why);
    asio::awaitable<void> flush();

    LogQueue log_;
    const std::chrono::milliseconds heartbeat_, stall_, patience_;
    std::function<int()> stop_;
    const uint64_t process_ = fresh_id();
    JobStatus status_;
    Progress progress_;
    RankState state_ = RankState::kJoining;
    wire::Welcome welcome_;
    std::optional<wire::Welcome> open_;      // the last ring that was open
    std::vector<wire::Welcome> maybe_open_;  // for which this rank was READY since
    std::set<uint64_t> dead_;                // dead processes of the last ring, for certain
    tcp::endpoint first_;
    std::string what_;  // for newcomers
    std::atomic<bool> is_newcomer_{false}, newcomer_waits_{false};
    Pause pause_;
    bool answer_due_ = false, server_left_ = false, silence_logged_ = false;
    Clock::time_point heard_, in_ring_;  // of the coordinator; of that of the last ring
    Clock::time_point silent_at_;        // the coordinator, if it is not heard before
    std::optional<Clock::time_point> signal_at_;
    Clock::time_point moved_at_;      // when a collective has moved its last byte
    Clock::duration longest_wait_{};  // for a byte
    uint64_t moved_ = 0;
    std::string joining_ = "no word from the coordinator yet";
    wire::Refuse refusal_{true, ""};
    std::string stalled_;   // whom the job waits for, by the coordinator's last message
    bool is_late_ = false;  // the job waits for this rank
    std::mutex stall_mutex_;
    std::function<void(const std::string&)> on_stall_;

    // Declared before the members that hold sockets, which must be destroyed first.
    asio::io_context io_{1};
    asio::executor_work_guard<asio::io_context::executor_type> busy_{io_.get_executor()};
    asio::steady_timer news_{io_};
    Listener listener_;
    std::vector<IncomingLink> incoming_links_;
    std::shared_ptr<CoordinatorShell> coordinator_;
    std::shared_ptr<Connection> connection_;
    std::thread thread_;
};

}  // namespace convoy
