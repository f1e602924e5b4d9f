// Which ring follows one that broke, in virtual time: thousands of jobs whose ranks die and whose
// links come and go, driven by Succession and Regroup as rejoin.cpp and coordinator_again.cpp do.
// No ring may open beside another, nor without one who knows what the last one trained.
#include "net/succession.h"

#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>

#include "tests/support.h"

using namespace convoy;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kTick{20};

// One way of a control connection. What is sent over a dead link arrives when that lives again,
// unless the connection has been closed.
struct Message {
    wire::Type type;
    wire::Welcome ring = {};
    wire::Known known = {};
    Clock::time_point due = {};  // here at the earliest; those behind it wait too
};
struct Line {
    int client, server;
    std::deque<Message> to_client, to_server;
    bool client_open = true, server_open = true;
    Clock::time_point client_heard, server_heard;
};
using LinePtr = std::shared_ptr<Line>;

enum class Stage { regrouping, forming, running };
struct Server {  // a coordinator
    Regroup regroup;
    wire::Welcome all, base;
    uint32_t generation;
    Stage stage = Stage::regrouping;
    bool cut_off = false;
    std::map<int, LinePtr> clients;  // by process
    std::set<int> ready;
    Clock::time_point since;
};

enum class Is { training, leaving, seeking, waiting, opening, ready, ended, dead };
struct Simulated {
    bool lives() const { return is != Is::ended && is != Is::dead; }
    bool opens(const wire::Welcome& ring) const {
        return last.id == ring.id && (is == Is::opening || is == Is::ready || is == Is::training);
    }
    Is is = Is::training;
    wire::Welcome last, open;
    std::vector<wire::Welcome> attempts;
    Succession turn{Clock::time_point{}};
    Clock::time_point heard{}, free_at{}, looks_at{}, left_at{}, since{};
    std::optional<int> asked;  // the rank that is to answer at free_at
    int serving = -1;          // the rank whose coordinator has taken it
    LinePtr line;
    std::unique_ptr<Server> serves;
};

int rank_of(const wire::Welcome& ring, int process) {
    return convoy::rank_of(ring, uint64_t(process + 1));
}
int process_of(const wire::Welcome& ring, int rank) {
    return int(ring.peers[size_t(rank)].process) - 1;
}

struct World {
    struct Down {
        int a, b;
        Clock::time_point from, to;
    };
    std::vector<Simulated> processes;
    std::vector<Down> down;
    std::map<int, Clock::time_point> dies;
    std::mt19937_64 random;
    Clock::time_point now{std::chrono::seconds(100)};
    std::vector<wire::Welcome> trained;  // rings that stood
    int faults = 0;
    bool looks_lower = true, doubts = true;
    uint64_t next_id = 1;

    int below(int n) { return int(random() % uint64_t(n)); }
    Simulated& at(int process) { return processes[size_t(process)]; }
    bool hear(int a, int b) const {
        return std::ranges::none_of(down, [&](const Down& d) {
            return std::minmax(a, b) == std::minmax(d.a, d.b) && now >= d.from && now < d.to;
        });
    }

    // Slow, so that faults come while a ring is formed.
    Clock::time_point soon() { return now + milliseconds(below(2) ? 0 : below(2'000)); }

    // The coordinator's part.
    void send(Server& server, int client, Message message) {
        server.clients.at(client)->to_client.push_back(std::move(message));
    }
    void serve(int process) {
        Simulated& own = at(process);
        if (own.serves) return;
        own.serves = std::make_unique<Server>();
        Server& s = *own.serves;
        s.all = own.open, s.generation = own.last.generation;
        s.regroup = Regroup(own.open, "the coordinator was lost", now);
        for (const auto& ring : own.attempts)
            s.regroup.attempted(ring, now), add_newcomers(s.all, ring);
        if (doubts && (now - own.heard > kSilence || now - own.left_at > kSilence))
            s.regroup.doubt(now);
        const int server = rank_of(s.all, process_of(own.last, own.last.server));
        s.regroup.cut(server, "lost"), s.regroup.expect_none(server);
    }
    void break_ring(Server& s) {
        for (auto& [client, line] : s.clients) send(s, client, {wire::Type::abort, s.all});
        if (s.stage == Stage::forming) {
            const wire::Welcome ring = std::exchange(s.all, s.base);
            s.regroup.failed(ring, "it broke", now);
        } else {
            s.regroup = Regroup(s.all, "it broke", now);
        }
        s.stage = Stage::regrouping, s.cut_off = false;
        for (auto& [client, line] : s.clients)
            s.regroup.heard(rank_of(s.all, client), line->server_heard);
    }
    void end(int process) {
        Simulated& own = at(process);
        own.is = Is::ended;
        hang_up(own), stop_serving(own);
    }
    void hang_up(Simulated& own) {
        if (own.line) own.line->client_open = false;
        own.line.reset();
    }
    void stop_serving(Simulated& own) {
        if (!own.serves) return;
        for (auto& [client, line] : own.serves->clients) line->server_open = false;
        own.serves.reset();
    }
    void lost(Server& s, int client) {
        if (s.stage != Stage::regrouping) s.clients.at(client)->server_heard = now, break_ring(s);
        s.clients.erase(client);
        s.regroup.cut(rank_of(s.all, client), "connection closed");
    }
    void coordinate(int process) {
        Server& s = *at(process).serves;
        for (const auto& [client, line] : std::map(s.clients)) {
            const bool heard = hear(process, client);
            if (heard && !line->client_open) {
                lost(s, client);
                continue;
            }
            if (heard) line->server_heard = now;
            if (heard && s.stage == Stage::regrouping) s.regroup.heard(rank_of(s.all, client), now);
            for (; heard && !line->to_server.empty() && now >= line->to_server.front().due;
                 line->to_server.pop_front())
                take(s, client, line->to_server.front());
            if (s.stage != Stage::regrouping && now - line->server_heard > kSilence) break_ring(s);
        }
        if (s.stage == Stage::forming && now - s.since > std::chrono::seconds(12)) {
            break_ring(s);  // links between its ranks: the highest that was not ready goes
            for (int rank = s.all.world - 1; rank >= 0; --rank) {
                const int client = process_of(s.all, rank);
                if (!s.clients.contains(client) || s.ready.contains(client)) continue;
                send(s, client, {wire::Type::leave});
                s.clients.erase(client),
                    s.regroup.gone(rank, "it did not do its part in time", now);
                break;
            }
        }
        if (s.stage == Stage::regrouping && !probe(process, s)) return;
        if (s.stage == Stage::regrouping) decide(process, s);
    }
    void take(Server& s, int client, const Message& message) {
        if (message.type == wire::Type::rejoin) {
            if (s.stage != Stage::regrouping) break_ring(s);
            s.generation = std::max(s.generation, message.ring.generation);
            s.regroup.back(rank_of(s.all, client), 0, false, message.known);
            s.regroup.heard(rank_of(s.all, client), now);
            if (s.cut_off && doubts) s.regroup.doubt(now);
        } else if (s.stage == Stage::forming && message.ring.generation == s.generation) {
            s.ready.insert(client);
            if (s.ready.size() < s.clients.size()) return;
            s.stage = Stage::running;
            for (auto& [other, line] : s.clients)
                send(s, other, {wire::Type::generation, s.all, {}, soon()});
        }
    }
    bool probe(int process, Server& s) {
        for (int rank = 0; rank < s.all.world; ++rank) {
            const int other = process_of(s.all, rank);
            if (!s.regroup.waits_for(rank) || s.clients.contains(other) || !hear(process, other))
                continue;
            if (!at(other).lives()) {
                s.regroup.gone(rank, "redial refused", now);
            } else if (s.regroup.is_behind(at(other).open.id, at(other).open.generation,
                                           uint64_t(process + 1))) {
                for (auto& [client, line] : s.clients) send(s, client, {wire::Type::leave});
                return at(process).serves.reset(), false;
            } else {
                s.regroup.heard(rank, now);
            }
        }
        return true;
    }
    void decide(int process, Server& s) {
        std::string why;
        const auto verdict = s.regroup.verdict(now, why);
        if (verdict == Regroup::Verdict::behind) {
            for (auto& [client, line] : s.clients) send(s, client, {wire::Type::leave});
            at(process).serves.reset();
        }
        if (verdict == Regroup::Verdict::cut_off && !std::exchange(s.cut_off, true) && doubts)
            s.regroup.doubt(now);
        if (verdict != Regroup::Verdict::form) return;
        s.base = std::exchange(s.all, {});
        s.all.generation = ++s.generation, s.all.id = ++next_id;
        for (const int rank : s.regroup.members()) {
            s.all.peers.push_back(s.base.peers[size_t(rank)]);
            if (process_of(s.base, rank) == process) s.all.server = s.all.world;
            ++s.all.world;
        }
        for (const auto& [client, line] : std::map(s.clients)) {
            const bool is_in = rank_of(s.all, client) >= 0;
            send(s, client, {is_in ? wire::Type::welcome : wire::Type::leave, s.all});
            if (!is_in) s.clients.erase(client);
        }
        s.stage = Stage::forming, s.ready.clear(), s.since = now;
    }

    // The rank's part.
    wire::Known known(const Simulated& own) const {
        wire::Known known{own.open.id, own.open.generation};
        for (const auto& ring : own.attempts) known.attempts.push_back(attempt_of(ring));
        return known;
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
        Server& s = *other.serves;
        if (rank_of(s.all, process) < 0) {
            const bool again = s.stage == Stage::forming && rank_of(s.base, process) >= 0;
            if (again) own.turn.answers(candidate);
            if (!again && believes) end(process);
            return false;
        }
        if (own.is == Is::opening ||
            (!believes && own.serves && own.serves->stage != Stage::regrouping))
            return false;
        if (!believes) stop_serving(own);
        hang_up(own);
        own.line = std::make_shared<Line>(Line{process, there, {}, {}, true, true, now, now});
        if (s.clients.contains(process)) s.clients.at(process)->server_open = false;
        s.clients[process] = own.line;
        own.serving = candidate, own.heard = now, own.is = Is::waiting;
        own.looks_at = now + kAskPatience;
        take(s, process, {wire::Type::rejoin, own.last, known(own)});
        return true;
    }
    void seek(int process) {
        Simulated& own = at(process);
        if (own.asked && !ask(process, *own.asked, true).has_value()) return;
        while (own.is == Is::seeking) {
            const auto next =
                own.turn.next({own.last.world, own.last.server, now - own.heard > kSilence}, now);
            if (!next && own.turn.is_over(now)) return end(process);
            if (!next) return;
            if (process_of(own.last, *next) == process) serve(process);
            if (!ask(process, *next, true).has_value()) return;
        }
    }
    void look_lower(int process) {
        Simulated& own = at(process);
        if (!looks_lower || (now < own.looks_at && !own.asked)) return;
        const int serving = own.serving;
        for (int lower = own.asked.value_or(0); lower < serving; ++lower) {
            const auto taken = ask(process, lower, false);
            if (!taken || *taken || !own.lives()) return;
        }
        own.looks_at = now + kSilence;
    }
    void receive(int process) {
        Simulated& own = at(process);
        const LinePtr line = own.line;
        const bool heard = hear(process, line->server);
        if (heard && line->server_open) own.heard = now;
        for (; heard && own.line == line && !line->to_client.empty() &&
               now >= line->to_client.front().due;
             line->to_client.pop_front()) {
            const Message& m = line->to_client.front();
            const bool is_last = m.ring.generation == own.last.generation;
            if (m.type == wire::Type::leave) return end(process);
            if (m.type == wire::Type::welcome && own.is == Is::waiting)
                own.last = m.ring, own.is = Is::opening, own.since = now, own.asked = {};
            if (m.type == wire::Type::generation && is_last) {
                if (own.is == Is::ready) own.is = Is::training;
                own.open = own.last, own.attempts.clear();
            }
            if (m.type == wire::Type::abort && is_last && own.is != Is::waiting) leave_ring(own);
        }
        if (own.line != line || !own.lives()) return;
        if ((heard && !line->server_open) || now - own.heard > kSilence) {
            hang_up(own);
            own.asked = {};
            if (own.is == Is::waiting)
                own.is = Is::seeking, own.turn = Succession(now);
            else
                leave_ring(own);
        }
    }
    void leave_ring(Simulated& own) {
        if (own.is == Is::leaving) return;
        own.looks_at = now + milliseconds(own.is == Is::training ? below(500) : 0);
        own.is = Is::leaving;
    }
    void go_on(int process) {
        Simulated& own = at(process);
        if (own.line) receive(process);
        if (own.is == Is::leaving && now >= own.looks_at) {  // it has done its step
            own.left_at = own.heard, own.turn = Succession(now), own.asked = {};
            if (own.last.id != own.open.id) {  // as Membership::back_to_base()
                const wire::Welcome ring = std::exchange(own.last, own.open);
                own.last.id = ring.id, own.last.generation = ring.generation;
                own.last.server = rank_of(own.last, process_of(ring, ring.server));
            }
            own.is = own.line ? Is::waiting : Is::seeking, own.serving = own.last.server;
            if (own.line) own.line->to_server.push_back({wire::Type::rejoin, own.last, known(own)});
            own.looks_at = now + kAskPatience;
        }
        if (own.is == Is::opening) {
            bool open = true;
            const int rank = rank_of(own.last, process);
            for (const int step : {1, own.last.world - 1}) {
                const int other = process_of(own.last, (rank + step) % own.last.world);
                open &= hear(process, other) && at(other).opens(own.last);
            }
            if (open && own.line) {
                own.is = Is::ready, own.attempts.push_back(own.last);
                own.line->to_server.push_back({wire::Type::ready, own.last, {}, soon()});
            }
        }
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
        for (const auto begin = now; now < begin + std::chrono::seconds(150); now += kTick) {
            int open = 0;
            for (int process = 0; process < int(processes.size()); ++process) {
                Simulated& own = at(process);
                if (dies.contains(process) && now >= dies[process] && own.lives())
                    end(process), own.is = Is::dead;
                if (own.lives()) go_on(process);
                if (own.lives() && own.serves) coordinate(process);
                stands(own) ? note(own.last) : void(open += own.lives());
            }
            if (open == 0 && now > last_event + 2 * kSilence) return 0;
        }
        return int(std::ranges::count_if(
            processes, [&](const Simulated& own) { return own.lives() && !stands(own); }));
    }
};

// A job in a ring that trains, and its faults of the next 12 seconds. Returns when they are over.
Clock::time_point draw(World& job, uint64_t seed) {
    job.random.seed(seed);
    const int world = 2 + job.below(4);
    wire::Welcome ring{.generation = 1, .world = world, .server = job.below(world), .id = 1};
    for (int process = 0; process < world; ++process)
        ring.peers.push_back({"", "", uint64_t(process + 1)});
    job.trained = {ring};
    job.processes.resize(size_t(world));
    Simulated& server = job.at(ring.server);
    server.serves = std::make_unique<Server>();
    server.serves->all = ring, server.serves->generation = 1;
    server.serves->stage = Stage::running;
    for (int process = 0; process < world; ++process) {
        Simulated& own = job.at(process);
        own.last = own.open = ring, own.heard = job.now;
        own.line = std::make_shared<Line>(
            Line{process, ring.server, {}, {}, true, true, job.now, job.now});
        server.serves->clients[process] = own.line;
    }
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

TEST_CASE("succession: where nobody asks lower ranks, two coordinators wait for each other") {
    int hung = 0;
    for (uint64_t seed = 0; seed < 3000; ++seed) {
        World job;
        job.looks_lower = false;
        hung += job.run(draw(job, seed));
    }
    CHECK(hung > 0);
}

// Its heir is stopped, another rank served until it heard that the coordinator lives: who was cut
// off for longer must not wait for its own turn.
TEST_CASE("succession: a silent coordinator is asked again, where its heir is silent too") {
    const Clock::time_point begin{};
    const auto at = [&](int64_t ms) { return begin + std::chrono::milliseconds(ms); };
    const Succession::Last last{.world = 5, .server = 0, .silent = true};
    Succession turn(begin);
    CHECK(turn.next(last, at(0)) == 1);
    CHECK(!turn.next(last, at(1'000)));  // it is waited for
    CHECK(turn.next(last, at(2'900)) == 1);
    CHECK(turn.next(last, at(3'900)) == 2);
    turn.answers(2);
    CHECK(!turn.next(last, at(3'950)));
    CHECK(turn.next(last, at(4'000)) == 0);
    CHECK(turn.next(last, at(5'000)) == 1);  // it is not waited for
}
