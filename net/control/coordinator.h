// coordinator.h — gathers the ranks of a job, gives them their numbers, receives their heartbeats,
// and tells all of them the first cause when one is lost. Gradients never go through it.
// elastic.md draws its states.
//
// It gathers the ranks of a new job (roster.h). After a ring broke, a majority of its ranks decides
// (regroup.h). If the coordinator's process is lost, the lowest living rank serves the next
// coordinator, which begins with the last ring.
//
// It is a function of its state, the time and an event; the answer is a list of actions. It holds
// no socket, timer or thread: coordinator_shell.h has them, and tests play them in virtual time.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "net/control/log_queue.h"
#include "net/control/regroup.h"
#include "net/control/roster.h"
#include "net/control/stall.h"
#include "src/base/clock.h"

namespace convoy {

// What may happen. Clients are connections, numbered by the shell.
namespace event {
struct Joined {  // a connection began with JOIN
    int client;
    wire::Join join;
};
struct Received {
    int client;
    wire::Message message;
};
struct Disconnected {  // comes once for each client, also after HangUp
    int client;
    std::string why;
};
struct ProbeResult {
    uint64_t process;         // the process that was looked for
    bool lives = false;       // it answers at its port
    bool seeks = false;       // it is in no ring, and seeks a coordinator
    std::string gone = {};    // why the process is dead for certain; "": it may live
    std::string why = {};     // why it was not reached
    uint32_t generation = 0;  // of the last ring that was open to it
};
struct Tick {                   // about every half heartbeat
    Clock::duration late = {};  // as this process had no processor
};
struct Stopped {};  // this process itself was stopped for a while, until now
struct Closing {};  // this coordinator ends in order
}  // namespace event
using Event = std::variant<event::Joined, event::Received, event::Disconnected, event::ProbeResult,
                           event::Tick, event::Stopped, event::Closing>;

// What the shell shall do, in this order.
namespace action {
struct Send {
    int client;
    std::string bytes;
    bool may_skip = false;  // if messages before it wait to be sent
};
struct HangUp {
    int client;
};
struct CheckMachine {  // close the connection if its machine does not answer for so long
    int client;
    std::chrono::milliseconds patience;
};
struct Probe {  // ask the process at this address how it is; answered by a ProbeResult
    wire::Member member;
    std::chrono::milliseconds after;
};
}  // namespace action
using Action = std::variant<action::Send, action::HangUp, action::CheckMachine, action::Probe>;

class Coordinator {
 public:
    using Time = Clock::time_point;
    struct Options {
        int world = 0;         // ranks of the job; 0: the ranks give it
        uint64_t id = 1;       // drawn at random: no other coordinator has it
        uint64_t process = 0;  // this one
        std::chrono::milliseconds heartbeat{1'000};
        // A part of the job that was cut off waits this long for the others.
        std::chrono::milliseconds patience = kLonePatience;
    };
    // What a rank knows of its job when it succeeds the coordinator.
    struct Heritage {
        wire::Welcome last;                          // the newest ring
        wire::Welcome open;                          // the last that was open; if none, the first
        std::vector<wire::Welcome> maybe_open = {};  // those after it for which it was READY
        std::string why;                             // the newest ring broke
        bool server_left = false;      // the rank with the coordinator has left in order
        bool cut_off = false;          // this process was stopped, or heard nothing for long
        std::set<uint64_t> dead = {};  // processes, for certain
    };

    explicit Coordinator(const Options& options) : Coordinator(options, options.id) {}
    // Succeeds a coordinator.
    Coordinator(const Options& options, const Heritage& heritage, Time now);

    std::vector<Action> step(Time now, const Event& event);

    std::chrono::milliseconds heartbeat() const { return options_.heartbeat; }
    // The ring that is formed or runs, if any.
    bool has_formed() const { return stage_ != Stage::gathering; }
    // Whether this client has a rank: only then it may send long messages.
    bool has_rank(int client) const;

 private:
    Coordinator(const Options& options, uint64_t job);

    static constexpr char kLeftBehind[] =
        "the job continued without this rank, which did not reach the others for too long; to "
        "add it again, restart it with --join";

    enum class Stage { gathering, forming, running, ended };
    // former: left behind, refused, or the job has ended. Messages of a former client are ignored.
    enum class Role { member, newcomer, former };
    struct Client {
        std::string name() const {
            return rank_name(number < 0 ? join.rank : number, join.address);
        }
        int id = -1, rank = -1, number = -1;  // number: wire::Member's
        Role role = Role::member;
        wire::Join join = {};
        Time heard = {};
        int visits = 0;  // a newcomer's address was tried this often, without an answer
        bool ready = false, accuses = false, left = false, silent = false, refused = false;
    };
    struct Accusation {  // rank `from` has no link to rank `to`
        int from, to;
        std::string why;
    };

    void on(const event::Joined& event);
    void on(const event::Received& event);
    void on(const event::Disconnected& event);
    void on(const event::ProbeResult& event);
    void on(const event::Tick& tick);
    void on(const event::Stopped&);
    void on(const event::Closing&);

    // Who asks for a place (coordinator_join.cpp).
    void join_first(Client& client);
    void refuse(Client& client, bool again, const std::string& why);
    bool tell_status(const std::string& status, bool now = false);
    void join_again(Client& client);
    void take_in_newcomers();
    void call_for_newcomers();
    void visited(Client& newcomer, const event::ProbeResult& result);
    // One ring after another.
    void back(Client& client);
    void break_ring(int lost, const std::string& why);
    void back_to_base(const std::string& why);
    void lose(const std::vector<int>& ranks, const std::string& why, bool certain = true);
    void leave_behind(Client& client, const std::string& why);
    void decide();
    void wait_for_others(const std::string& why);
    void end_part(const std::string& text);
    void form_again();
    void probe(const wire::Member& member, std::chrono::milliseconds after = kFirstProbe);
    void judge(const Accusation& accusation, const event::ProbeResult& result);

    void handle(Client& client, const wire::Message& message);
    void handle_ready(Client& client);
    void handle_abort(Client& client, const wire::Message& message);
    void handle_leave(Client& client);
    void disconnected(Client& client, const std::string& why);
    void retire(Client& client, bool refused = false);
    void welcome_all();
    void stop_job(int lost, const std::string& why, wire::End end = wire::End::job);
    void end_job();
    // As time passes (coordinator_silence.cpp).
    void check_silence(Client& client);
    void hurry();
    void tell_wait();

    uint64_t fresh_id() { return options_.id + 0x9e3779b97f4a7c15 * ++issued_; }
    bool is_again() const { return stage_ == Stage::gathering && ring_.world > 0; }
    bool elastic() const { return ring_.rules.elastic; }
    std::vector<Client*> clients(Role role);
    const wire::Member& member(int rank) const { return ring_.peers[size_t(rank)]; }
    std::string name(int rank) const { return rank_name(member(rank)); }
    std::chrono::milliseconds silence() const { return ring_.rules.silence(); }
    void send(const Client& client, std::string bytes) {
        actions_.push_back(action::Send{client.id, std::move(bytes)});
    }
    void broadcast(const std::string& message);
    void notice(const std::string& text);

    const Options options_;
    Time now_{};
    std::vector<Action> actions_;
    uint64_t issued_ = 0;
    const uint64_t job_;
    uint32_t generation_ = 1;
    Stage stage_ = Stage::gathering;
    std::map<int, Client> clients_;
    Roster roster_;
    Refusals refused_;
    std::optional<Time> told_at_;  // when all ranks were told which ranks have joined
    bool is_told_ = true;          // since then, none has joined or left
    wire::Welcome ring_;           // of the generation; while it gathers, the one before
    wire::Welcome base_;           // while it forms: the last open ring, if there was one
    Regroup regroup_;
    std::set<uint64_t> probed_;  // processes with a probe under way
    std::vector<Accusation> accusations_;
    Time formed_{};                          // the ring
    Time due_ = Time::max();                 // deadline for ranks that form the ring
    std::optional<Time> stopped_at_;         // this process
    std::optional<Time> cut_off_;            // this part of the job waits for the others
    std::optional<Time> waits_since_;        // for a new ring
    std::chrono::milliseconds tell_wait_{};  // the log says it after that time
    std::set<uint64_t> left_;                // processes that have left the ring in order
    // The rank in this process has left or failed: this process ends soon, and the next rank
    // serves.
    bool own_rank_left_ = false;
    bool send_beat_ = false;
    StallWatch watch_;
};

}  // namespace convoy
