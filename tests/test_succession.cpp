// Which ring follows one that broke, in virtual time: thousands of jobs whose ranks die, are
// stopped, and whose links come and go. The coordinators are real ones (net/control/coordinator.h),
// and so is the order in which ranks are asked for the next one (net/control/succession.h); ranks
// and sockets are simulated. No ring may open beside another, nor without a rank that knows what
// the last one trained.
#include "net/control/succession.h"

#include <deque>
#include <map>
#include <memory>
#include <random>
#include <utility>

#include "net/control/coordinator.h"
#include "tests/support.h"

using namespace convoy;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr milliseconds kTick{20};

// A control connection. What is sent over a dead link arrives when that lives again, unless the
// connection has been closed.
struct Line {
    Line(int client_, int server_) : client(client_), server(server_) {}
    struct Bytes {
        wire::Message message;
        Clock::time_point due = {};  // here at the earliest; those behind it wait too
    };
    int client, server;
    std::deque<Bytes> to_client = {}, to_server = {};
    bool client_open = true, server_open = true;
    Clock::time_point beat = {};  // when the client's next heartbeat leaves
};
using LinePtr = std::shared_ptr<Line>;

wire::Message message_of(const std::string& bytes) {
    const auto head = std::as_bytes(std::span(bytes)).first<wire::kHeaderBytes>();
    return {wire::decode(head, wire::kControlLimit), bytes.substr(wire::kHeaderBytes)};
}

struct Server {  // a coordinator and its shell
    Coordinator coordinator;
    std::map<int, LinePtr> lines;  // by client
    struct Asked {
        uint64_t process;
        Clock::time_point due;
    };
    std::vector<Asked> probes;
    int next_client = 0;
    Clock::time_point tick;
};

enum class Is { training, leaving, seeking, waiting, opening, ready, ended, dead };
struct Simulated {
    bool lives() const { return is != Is::ended && is != Is::dead; }
    bool opens(const wire::Welcome& ring) const {
        return last.id == ring.id && (is == Is::opening || is == Is::ready || is == Is::training);
    }
    Is is = Is::waiting;
    wire::Welcome last, open;
    std::vector<wire::Welcome> maybe_open;
    Succession turn{Clock::time_point{}};
    Clock::time_point heard{}, free_at{}, looks_at{}, left_at{}, since{};
    std::optional<Clock::time_point> stopped_at;
    std::optional<int> asked;  // the rank that is to answer at free_at
    int serving = -1;          // the rank whose coordinator has taken it
    bool accuses = false, was_stopped = false, newcomer = false, planned = false;
    LinePtr line;
    std::unique_ptr<Server> serves;
};

int process_of(const wire::Welcome& ring, int rank) {
    return int(ring.peers[size_t(rank)].process) - 1;
}
int rank_in(const wire::Welcome& ring, int process) { return rank_of(ring, uint64_t(process + 1)); }

struct World {
    struct Span {
        int a, b;  // the link between these processes is down; of a process itself: it is stopped
        Clock::time_point from, to;
    };
    std::vector<Simulated> processes;
    std::vector<Span> down;
    std::map<int, Clock::time_point> dies;
    std::mt19937_64 random;
    Clock::time_point now{seconds(100)};
    std::vector<wire::Welcome> trained;  // rings that stood
    int faults = 0;
    uint64_t next_id = 1'000;
    bool is_quick = false;     // ranks and messages have no random delays
    Span split{0, 0, {}, {}};  // the processes below `a` do not reach the others
    int64_t messages = 0, bytes = 0, largest = 0;  // of all coordinators, both ways

    int below(int n) { return int(random() % uint64_t(n)); }
    Simulated& at(int process) { return processes[size_t(process)]; }
    void count(const std::string& body) {
        ++messages, bytes += int64_t(wire::kHeaderBytes + body.size());
        largest = std::max(largest, int64_t(wire::kHeaderBytes + body.size()));
    }
    bool is_down(int a, int b) const {
        if ((a < split.a) != (b < split.a) && now >= split.from && now < split.to) return true;
        return std::ranges::any_of(down, [&](const Span& d) {
            return std::minmax(a, b) == std::minmax(d.a, d.b) && now >= d.from && now < d.to;
        });
    }
    bool hear(int a, int b) const {
        return (a == b || !is_down(a, b)) && !is_down(a, a) && !is_down(b, b);
    }

    // Slow, so that faults come while a ring is formed.
    Clock::time_point soon() {
        if (is_quick) return now;
        return now + milliseconds(below(2) ? 0 : below(2'000));
    }

    // ---- the coordinator's shell
    void step(int process, const Event& event) {
        Server& s = *at(process).serves;
        for (const Action& action : s.coordinator.step(now, event)) {
            if (const auto* send = std::get_if<action::Send>(&action)) {
                const auto line = s.lines.find(send->client);
                if (line == s.lines.end() || !line->second->server_open || send->may_skip) continue;
                const wire::Message message = message_of(send->bytes);
                count(message.body);
                const bool is_slow = message.header.type == wire::Type::generation;
                line->second->to_client.push_back({message, is_slow ? soon() : now});
            } else if (const auto* hang_up = std::get_if<action::HangUp>(&action)) {
                if (s.lines.contains(hang_up->client))
                    s.lines[hang_up->client]->server_open = false;
            } else if (const auto* probe = std::get_if<action::Probe>(&action)) {
                const int other = int(probe->member.process) - 1;
                s.probes.push_back(
                    {probe->member.process,
                     now + probe->after + (hear(process, other) ? kTick : kAskPatience)});
            }
        }
    }
    Coordinator::Options options(int process) {
        return {.id = next_id += 1'000, .process = uint64_t(process + 1)};
    }
    void serve(int process) {
        Simulated& own = at(process);
        if (own.serves) return;
        const bool cut_off = now - own.heard > kSilence || now - own.left_at > kSilence ||
                             (own.stopped_at && now - *own.stopped_at < 2 * kSilence);
        own.serves = std::make_unique<Server>(
            Server{Coordinator(options(process),
                               {own.last, own.open, own.maybe_open, "lost", false, cut_off}, now),
                   {},
                   {},
                   0,
                   now});
    }
    void coordinate(int process) {
        Server& s = *at(process).serves;
        for (const auto& [client, line] : std::map(s.lines)) {
            if (!hear(process, line->client)) continue;
            for (; line->server_open && !line->to_server.empty() &&
                   now >= line->to_server.front().due;
                 line->to_server.pop_front()) {
                count(line->to_server.front().message.body);
                step(process, event::Received{client, line->to_server.front().message});
            }
            if (line->server_open && line->client_open) continue;
            line->server_open = false;
            s.lines.erase(client);
            step(process, event::Disconnected{client, "connection closed"});
        }
        for (const auto [wanted, due] : std::vector(s.probes)) {
            if (now < due) continue;
            std::erase_if(s.probes, [&](const auto& probe) { return probe.process == wanted; });
            const int other = int(wanted) - 1;
            event::ProbeResult result{wanted};
            if (hear(process, other)) {
                result.lives = at(other).lives();
                if (!result.lives) result.gone = "redial refused";
                result.seeks = at(other).is == Is::seeking || at(other).is == Is::waiting;
                result.generation = at(other).open.generation;
            }
            step(process, result);
        }
        if (now < s.tick) return;
        s.tick = now + milliseconds(500);
        step(process, event::Tick{});
    }
    void hang_up(Simulated& own) {
        if (own.line) own.line->client_open = false;
        own.line.reset();
    }
    void stop_serving(Simulated& own) {
        if (!own.serves) return;
        for (auto& [client, line] : own.serves->lines) line->server_open = false;
        own.serves.reset();
    }
    void end(int process) {
        Simulated& own = at(process);
        own.is = Is::ended;
        hang_up(own), stop_serving(own);
    }

    // ---- the rank's part
    void send(Simulated& own, const std::string& bytes, Clock::time_point due = {}) {
        own.line->to_server.push_back({message_of(bytes), due});
    }
    wire::Join join_message(int process) const {
        const Simulated& own = processes[size_t(process)];
        wire::Join join;
        join.process = uint64_t(process + 1);
        join.job = own.last.job, join.generation = own.last.generation;
        join.step = 0, join.why = own.planned ? "" : "a link broke";
        join.newcomer = own.newcomer;
        join.open = own.open.id, join.open_generation = own.open.generation;
        for (const auto& ring : own.maybe_open) join.maybe_open.push_back(ring_id(ring));
        return join;
    }
    LinePtr connect(int process, int there, const wire::Join& join) {
        ++messages;
        Server& s = *at(there).serves;
        const auto line = std::make_shared<Line>(process, there);
        const int client = s.next_client++;
        s.lines[client] = line;
        step(there, event::Joined{client, join});
        return line;
    }
    // Whether the coordinator of rank `candidate` takes this process; nothing: no answer yet.
    std::optional<bool> ask(int process, int candidate, bool believes) {
        Simulated& own = at(process);
        const int there = process_of(own.last, candidate);
        if (!own.asked) {
            if (own.turn.is_gone(candidate)) return false;
            own.asked = candidate;
            own.free_at = now + (hear(process, there) ? kTick : kAskPatience);
        }
        if (now < own.free_at) return {};
        own.asked = {};
        if (!hear(process, there)) return false;
        Simulated& other = at(there);
        if (!other.lives()) return own.turn.gone(candidate), false;
        if (!other.serves) return own.turn.answers(candidate), false;
        const LinePtr line = connect(process, there, join_message(process));
        const wire::Message answer = line->to_client.front().message;
        line->to_client.pop_front();
        if (answer.header.type == wire::Type::refuse) {
            line->client_open = false;
            const auto refusal = wire::decode<wire::Refuse>(answer.body);
            own.turn.answers(candidate);
            if (!refusal.again && believes) end(process);
            return false;
        }
        if (own.is == Is::opening ||
            (!believes && own.serves && own.serves->coordinator.has_formed())) {
            line->client_open = false;
            return false;
        }
        if (!believes) stop_serving(own);
        hang_up(own);
        own.line = line;
        own.serving = candidate, own.heard = now, own.is = Is::waiting;
        own.looks_at = now + kAskPatience;
        return true;
    }
    void seek(int process) {
        Simulated& own = at(process);
        if (own.asked && !ask(process, *own.asked, true).has_value()) return;
        while (own.is == Is::seeking) {
            const auto next = own.turn.next(own.last, is_silent(own), now);
            if (!next && own.turn.is_over(now)) return end(process);
            if (!next) return;
            if (process_of(own.last, *next) == process) serve(process);
            if (!ask(process, *next, true).has_value()) return;
        }
    }
    void look_lower(int process) {
        Simulated& own = at(process);
        if (now < own.looks_at && !own.asked) return;
        const int serving = own.serving;
        for (int lower = own.asked.value_or(0); lower < serving; ++lower) {
            const auto taken = ask(process, lower, false);
            if (!taken || *taken || !own.lives()) return;
        }
        own.looks_at = now + own.last.rules.silence();
    }
    bool is_silent(const Simulated& own) const {
        return now - own.heard > own.last.rules.silence();
    }
    void receive(int process) {
        Simulated& own = at(process);
        const LinePtr line = own.line;
        const bool heard = hear(process, line->server);
        if (heard && line->server_open) own.heard = now;
        for (; heard && own.line == line && !line->to_client.empty() &&
               now >= line->to_client.front().due;
             line->to_client.pop_front())
            if (handle(process, line->to_client.front().message); !own.lives()) return;
        if (own.line != line) return;
        if ((heard && !line->server_open) || is_silent(own)) {
            hang_up(own);
            own.asked = {};
            if (own.is == Is::waiting)
                own.is = Is::seeking, own.turn = Succession(now, own.last.rules.silence());
            else
                leave_ring(own);
        } else if (now >= line->beat && line->to_server.empty()) {
            line->beat = now + seconds(1);
            send(own, wire::encode(wire::Heartbeat{}));
        }
    }
    void handle(int process, const wire::Message& message) {
        Simulated& own = at(process);
        const uint32_t generation = message.header.generation;
        const bool is_last = generation == own.last.generation;
        if (message.header.type == wire::Type::welcome && own.is == Is::waiting) {
            own.last = wire::decode<wire::Welcome>(message.body, generation);
            own.is = Is::opening, own.since = now, own.asked = {}, own.accuses = false;
        }
        const bool maybe =
            !own.maybe_open.empty() && own.maybe_open.back().generation == generation;
        if (message.header.type == wire::Type::generation && maybe) {
            if (own.is == Is::ready) own.is = Is::training;
            own.open = own.maybe_open.back(), own.maybe_open.clear();
            own.newcomer = own.planned = false;
        }
        if (message.header.type == wire::Type::newcomer && is_last && own.is == Is::training) {
            own.planned = true;
            leave_ring(own);
        }
        if (message.header.type != wire::Type::abort) return;
        if (wire::decode<wire::Abort>(message.body).end != wire::End::ring) return end(process);
        if (!is_last || own.is == Is::waiting) return;
        if (maybe) own.maybe_open.pop_back();  // it was never open
        leave_ring(own);
    }
    void leave_ring(Simulated& own) {
        if (own.is == Is::leaving) return;
        own.looks_at = now + milliseconds(own.is == Is::training && !is_quick ? below(500) : 0);
        own.is = Is::leaving;
    }
    // As Membership::leave_ring().
    void come_back(int process) {
        Simulated& own = at(process);
        own.left_at = own.heard, own.asked = {};
        own.turn = Succession(now, own.last.rules.silence());
        if (own.last.id != own.open.id) {
            const wire::Welcome ring = std::exchange(own.last, own.open);
            add_newcomers(own.last, ring);
            own.last.id = ring.id, own.last.generation = ring.generation;
            own.last.rules = ring.rules;
            own.last.server = rank_in(own.last, process_of(ring, ring.server));
        }
        own.is = own.line ? Is::waiting : Is::seeking, own.serving = own.last.server;
        if (own.line) send(own, wire::encode(join_message(process)));
        own.looks_at = now + kAskPatience;
    }
    void open_links(int process) {
        Simulated& own = at(process);
        int missing = -1;
        const int rank = rank_in(own.last, process);
        for (const int step : {1, own.last.world - 1}) {
            const int there = (rank + step) % own.last.world, other = process_of(own.last, there);
            if (!hear(process, other) || !at(other).opens(own.last)) missing = there;
        }
        if (!own.line) return;
        const auto patience = missing < rank ? seconds(12) : seconds(30);
        if (missing < 0) {
            own.is = Is::ready, own.maybe_open.push_back(own.last);
            send(own, wire::encode_empty(wire::Type::ready, own.last.generation), soon());
        } else if (now - own.since > patience && !std::exchange(own.accuses, true)) {
            send(own, wire::encode(wire::Abort{missing, "it cannot reach it", wire::End::ring,
                                               own.last.generation}));
        }
    }
    void go_on(int process) {
        Simulated& own = at(process);
        if (own.line) receive(process);
        if (own.is == Is::leaving && now >= own.looks_at) come_back(process);  // its step is done
        if (own.is == Is::opening) open_links(process);
        if (own.is == Is::seeking) seek(process);
        if (own.is == Is::waiting) look_lower(process);
    }
    bool stands(const Simulated& own) const {
        return own.is == Is::training &&
               std::ranges::all_of(own.last.peers, [&](const wire::Member& peer) {
                   const Simulated& other = processes[peer.process - 1];
                   return other.is == Is::training && other.last.id == own.last.id;
               });
    }
    // Steps are done only by all ranks of a ring: one who left it ends it for all.
    void note(const wire::Welcome& ring) {
        if (ring.id == trained.back().id) return;
        const bool shares = std::ranges::any_of(ring.peers, [&](auto& peer) {
            return convoy::rank_of(trained.back(), peer.process) >= 0;
        });
        faults += !shares || std::ranges::count(trained, ring.id, &wire::Welcome::id) > 0;
        trained.push_back(ring);
    }
    // Until nothing happens any more. Returns how many neither train nor have ended.
    int run(Clock::time_point last_event) {
        for (const auto begin = now; now < begin + seconds(150); now += kTick) {
            int open = 0;
            for (int process = 0; process < int(processes.size()); ++process) {
                Simulated& own = at(process);
                if (dies.contains(process) && now >= dies[process] && own.lives())
                    end(process), own.is = Is::dead;
                if (own.lives() && !is_stopped(process)) {
                    go_on(process);
                    if (own.lives() && own.serves) coordinate(process);
                }
                stands(own) ? note(own.last) : void(open += own.lives());
            }
            if (open == 0 && now > last_event + 2 * kSilence) return 0;
        }
        return int(std::ranges::count_if(
            processes, [&](const Simulated& own) { return own.lives() && !stands(own); }));
    }
    // Notices, as Pause does, when the process runs again.
    bool is_stopped(int process) {
        Simulated& own = at(process);
        if (is_down(process, process)) return own.was_stopped = true;
        if (!std::exchange(own.was_stopped, false)) return false;
        own.stopped_at = own.heard = now;
        if (own.serves) step(process, event::Stopped{});
        return false;
    }
};

// A job in a ring that trains, and its faults of the next 12 seconds. Returns when they are over.
Clock::time_point draw(World& job, uint64_t seed) {
    job.random.seed(seed);
    const int world = 2 + job.below(4), server = job.below(world);
    job.processes.resize(size_t(world));
    job.at(server).serves =
        std::make_unique<Server>(Server{Coordinator(job.options(server)), {}, {}, 0, job.now});
    for (int process = 0; process < world; ++process) {
        wire::Join join;
        join.rank = process, join.world = world, join.process = uint64_t(process + 1);
        join.rules.elastic = true;
        job.at(process).line = job.connect(process, server, join);
        job.at(process).heard = job.now, job.at(process).serving = server;
        job.at(process).looks_at = job.now + seconds(1);
    }
    for (; !job.stands(job.at(0)); job.now += kTick)
        for (int process = 0; process < world; ++process) {
            job.go_on(process);
            if (process == server) job.coordinate(process);
        }
    job.trained = {job.at(0).last};
    const auto moment = [&] {  // often when silence has just broken a ring, and one is formed
        return milliseconds(job.below(3) ? 2'500 + job.below(4'000) : job.below(12'000));
    };
    auto over = job.now;
    for (int cuts = job.below(3); cuts > 0; --cuts) {  // a network that is cut in two, or a link
        const int side = job.below(2) ? job.below(1 << world) : 0;
        const auto from = job.now + (job.below(2) ? milliseconds(0) : moment());
        const auto to = from + (job.below(2) ? milliseconds(700) : 2 * moment());
        for (int a = 0; a < world; ++a)
            for (int b = a + 1; b < world; ++b)
                if (side ? (side >> a & 1) != (side >> b & 1) : job.below(4) == 0)
                    job.down.push_back({a, b, from, to + milliseconds(job.below(2) * 500)});
        over = std::max(over, to + milliseconds(500));
    }
    for (int process = 0; process < world; ++process)
        if (job.below(4) == 0) over = std::max(over, job.dies[process] = job.now + moment());
    if (const auto from = job.now + moment(); job.below(4) == 0) {  // a process that is stopped
        const int process = job.below(world);
        job.down.push_back({process, process, from, from + moment()});
        over = std::max(over, job.down.back().to);
    }
    return over;
}

}  // namespace

TEST_CASE(
    "succession: ranks that die, links that come and go: one ring at a time, and nobody hangs") {
    int64_t formed = 0, trains = 0, hung = 0, alone = 0;
    for (uint64_t seed = 0; seed < 30'000; ++seed) {
        World job;
        hung += job.run(draw(job, seed));
        CAPTURE(seed);
        if (job.faults > 0) CHECK(job.faults == 0);
        formed += int64_t(job.trained.size()) - 1;
        int alive = 0, training = 0;
        for (const Simulated& own : job.processes)
            alive += own.is != Is::dead, training += own.is == Is::training;
        trains += training > 0, alone += alive > 0 && training == 0;
    }
    MESSAGE(formed, " rings; ", trains, " jobs go on, ", alone, " end though some live");
    CHECK(hung == 0);
    CHECK(formed > 20'000);
    CHECK(trains > 25'000);
}

// Its heir is stopped, another rank served until it heard that the coordinator lives: who was cut
// off for longer must not wait for its own turn.
TEST_CASE("succession: a silent coordinator is asked again, where its heir is silent too") {
    const Clock::time_point begin{};
    const auto at = [&](int64_t ms) { return begin + std::chrono::milliseconds(ms); };
    const wire::Welcome last{.world = 5};  // its coordinator, rank 0, was silent
    Succession turn(begin);
    CHECK(turn.next(last, true, at(0)) == 1);
    CHECK(!turn.next(last, true, at(1'000)));  // it is waited for
    CHECK(turn.next(last, true, at(2'900)) == 1);
    CHECK(turn.next(last, true, at(3'900)) == 2);
    turn.answers(2);
    CHECK(!turn.next(last, true, at(3'950)));
    CHECK(turn.next(last, true, at(4'000)) == 0);
    CHECK(turn.next(last, true, at(5'000)) == 1);  // it is not waited for
}

namespace {

// A job of many ranks on one network, step by step.
struct ThousandRanks : World {
    static constexpr int kRanks = 1'000;
    ThousandRanks() {
        is_quick = true;
        processes.resize(kRanks);
        at(0).serves = std::make_unique<Server>(Server{Coordinator(options(0)), {}, {}, 0, now});
        for (int process = kRanks - 1; process >= 0; --process) start(process, 0);
    }
    void start(int process, int there) {
        Simulated& own = at(process);
        wire::Join join = join_message(process);
        join.host = cat("host", process),
        join.address = cat("10.0.", process / 250, ".", process % 250);
        join.rules.elastic = true;
        if (own.newcomer)
            own.last = at(there).last, join.job = own.last.job;
        else
            join.rank = process, join.world = kRanks;
        own.line = connect(process, there, join);
        own.heard = now, own.serving = there, own.looks_at = now + seconds(1'000);
    }
    void kill(int process) {
        end(process);
        at(process).is = Is::dead;
    }
    void tick() {
        now += kTick;
        for (int process = 0; process < int(processes.size()); ++process) {
            if (!at(process).lives()) continue;
            go_on(process);
            if (at(process).lives() && at(process).serves) coordinate(process);
        }
    }
    int living() const {
        return int(std::ranges::count_if(processes, [](const auto& one) { return one.lives(); }));
    }
    int server() const {
        const auto serves = [](const auto& one) { return one.lives() && one.serves; };
        return int(std::ranges::find_if(processes, serves) - processes.begin());
    }
    // Until this many ranks train in one ring. Prints a row of the table in net/elastic.md, and
    // checks that each rank has sent or got a few messages only.
    void until(int ranks, const std::string& what, int most_messages) {
        const auto begin = now;
        const auto is_there = [&] {
            int train = 0;
            uint64_t ring = 0;
            for (const Simulated& own : processes)
                if (own.is == Is::training) {
                    if (own.last.world != ranks || (ring && ring != own.last.id)) return false;
                    ++train, ring = own.last.id;
                }
            return train == ranks;
        };
        while (!is_there() && now - begin < seconds(120)) tick();
        CAPTURE(what);
        CHECK(is_there());
        const double each = double(messages) / ranks;
        MESSAGE("| ", what, " | ", ranks, " | ",
                fmt::format("{:.1f} s | {:.1f} | {:.1f} KB |", seconds_between(begin, now), each,
                            double(bytes) / 1e3 / ranks));
        CHECK(each <= most_messages);
        messages = bytes = 0;
    }
};

}  // namespace

TEST_CASE("a thousand ranks: start, a tenth killed, the coordinator, a split, a rolling restart") {
    ThousandRanks job;
    job.until(1'000, "start", 10);
    for (int process = 500; process < 600; ++process) job.kill(process);
    job.until(900, "100 ranks are killed at once", 30);
    job.kill(0);
    job.until(899, "the rank with the coordinator is killed", 30);
    // 499 ranks go on with their coordinator; the other 400 are told so when the cut heals.
    job.split = {600, 0, job.now, job.now + seconds(60)};
    job.until(499, "the network is cut in two: 499 of 899 go on", 30);
    while (job.now < job.split.to + seconds(20)) job.tick();
    CHECK(job.living() == 499);
    job.messages = job.bytes = 0;
    for (int round = 0; round < 5; ++round) {  // each new process takes the place of an old one
        job.kill(100 + round);
        job.processes.emplace_back().newcomer = true;
        job.start(int(job.processes.size()) - 1, job.server());
        job.until(499, cat("rolling restart, rank ", 100 + round), 30);
    }
}
