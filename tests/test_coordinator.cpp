// The coordinator without sockets or clock: events in, messages out. What it decides about many
// ranks in many orders is in test_succession.cpp.
#include "net/control/coordinator.h"

#include <set>

#include "tests/support.h"

using namespace convoy;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

const wire::Rules kElastic{.elastic = true};

struct Played {
    // `server`: the client whose process serves the coordinator.
    explicit Played(int world, int server = 0)
        : coordinator({.world = world, .id = 1'000'000, .process = uint64_t(server + 1)}) {}

    void step(const Event& event) {
        for (const Action& action : coordinator.step(now, event)) {
            if (const auto* send = std::get_if<action::Send>(&action)) {
                if (send->may_skip) continue;  // heartbeats
                const auto head = std::as_bytes(std::span(send->bytes)).first<wire::kHeaderBytes>();
                sent[send->client].push_back({wire::decode(head, wire::kControlLimit),
                                              send->bytes.substr(wire::kHeaderBytes)});
            }
            if (const auto* hang_up = std::get_if<action::HangUp>(&action))
                hung_up.insert(hang_up->client);
            if (const auto* probe = std::get_if<action::Probe>(&action))
                probes.push_back(probe->member.process);
        }
    }
    // Time passes, in which these clients send heartbeats.
    void pass(milliseconds time, const std::vector<int>& alive = {}) {
        for (const auto end = now + time; now < end; now += milliseconds(100)) {
            for (const int client : alive) say(client, wire::Heartbeat{});
            step(event::Tick{});
        }
    }
    // Client and process number `client` asks for a rank.
    wire::Join join_of(int client, int rank, int world, wire::Rules rules = kElastic) {
        wire::Join join;
        join.rank = rank, join.world = world, join.rules = rules;
        join.process = uint64_t(client + 1);
        join.address = cat("10.0.0.", client, ":29400");
        return join;
    }
    void join(int client, int rank, int world, wire::Rules rules = kElastic) {
        step(event::Joined{client, join_of(client, rank, world, rules)});
    }
    wire::Join again(int client, int64_t step = 3) {
        wire::Join join = join_of(client, client, 0);
        join.job = ring.job, join.generation = ring.generation;
        join.step = step, join.why = "a link broke";
        return join;
    }
    void say(int client, const auto& message) {
        hear(client, wire::encode(message), message.kType);
    }
    void say_empty(int client, wire::Type type) {
        hear(client, wire::encode_empty(type, ring.generation), type);
    }
    void hear(int client, const std::string& bytes, wire::Type type) {
        step(event::Received{client, {{type, ring.generation}, bytes.substr(wire::kHeaderBytes)}});
    }
    // The messages of this type that the client got since the last question.
    std::vector<wire::Message> got(int client, wire::Type type) {
        std::vector<wire::Message> found;
        std::erase_if(sent[client], [&](const wire::Message& message) {
            if (message.header.type == type) found.push_back(message);
            return message.header.type == type;
        });
        return found;
    }
    bool is_welcome(int client) {
        const auto messages = got(client, wire::Type::welcome);
        if (messages.empty()) return false;
        const wire::Message& last = messages.back();
        ring = wire::decode<wire::Welcome>(last.body, last.header.generation);
        return true;
    }
    std::string left_behind(int client) {
        for (const wire::Message& message : got(client, wire::Type::abort))
            if (const auto abort = wire::decode<wire::Abort>(message.body);
                abort.end == wire::End::membership)
                return abort.why;
        return "";
    }
    // Clients 0 … world-1 form a ring, each with the rank of its number.
    void form(int world, wire::Rules rules = kElastic) {
        for (int rank = world - 1; rank >= 0; --rank) join(rank, rank, world, rules);
        REQUIRE(is_welcome(0));
        for (int rank = 0; rank < world; ++rank) say_empty(rank, wire::Type::ready);
        for (int rank = 0; rank < world; ++rank)
            REQUIRE(got(rank, wire::Type::generation).size() == 1);
        sent.clear();
    }

    Coordinator coordinator;
    Clock::time_point now{seconds(1'000)};
    std::map<int, std::vector<wire::Message>> sent;
    std::set<int> hung_up;
    std::vector<uint64_t> probes;
    wire::Welcome ring;
};

}  // namespace

TEST_CASE("coordinator: a rank at whose address another process answers is lost at once") {
    Played job(2);
    job.form(2);
    job.step(event::Disconnected{1, "connection closed"});
    CHECK(job.probes == std::vector<uint64_t>{2});
    job.say(0, job.again(0));
    CHECK(!job.is_welcome(0));
    job.step(event::ProbeResult{2, false, false, "another process is at its address"});
    REQUIRE(job.is_welcome(0));
    CHECK(job.ring.world == 1);
    CHECK(contains(job.ring.why, "rank 1 (10.0.0.1:29400) lost: connection closed, another"));
}

TEST_CASE("coordinator: after 5 s ranks hear for which rank a new ring waits") {
    Played job(2);
    job.form(2);
    job.say(0, job.again(0));
    job.pass(milliseconds(4'900), {0, 1});
    CHECK(job.got(0, wire::Type::notice).empty());
    job.pass(milliseconds(300), {0, 1});
    const auto notices = job.got(0, wire::Type::notice);
    REQUIRE(notices.size() == 1);
    CHECK(contains(wire::decode_text(notices[0].body), "rank 1 (10.0.0.1:29400)"));
}

TEST_CASE(
    "coordinator: a rank that answers, but does not connect for 30 s and 1 s per rank, is lost") {
    Played job(4, 1);
    job.form(4);
    job.step(event::Disconnected{0, "connection closed"});
    job.step(event::ProbeResult{1, false, false, "redial refused"});
    for (const int rank : {1, 2}) job.say(rank, job.again(rank));
    job.step(event::Disconnected{3, "connection closed"});
    const auto answers = [&](seconds time, bool seeks) {
        for (const auto end = job.now + time; job.now < end;) {
            job.step(event::ProbeResult{4, true, seeks, "", "", 1});
            job.pass(milliseconds(500), {1, 2});
        }
    };
    answers(seconds(60), /*seeks=*/false);  // it computes
    answers(seconds(33), /*seeks=*/true);
    CHECK(!job.is_welcome(1));
    const auto notices = job.got(1, wire::Type::notice);
    REQUIRE(!notices.empty());
    CHECK(!contains(wire::decode_text(notices[0].body), "has not connected"));
    answers(seconds(5), /*seeks=*/true);
    REQUIRE(job.is_welcome(1));
    CHECK(job.ring.world == 2);
    CHECK(contains(job.ring.why, "lost: connection closed, it answers and has not connected"));
    CHECK(
        contains(wire::decode_text(notices.back().body), ", but it answers and has not connected"));
}

TEST_CASE("coordinator: a job of which no rank answers ends, and whoever asks is told so") {
    Played job(2);
    job.form(2);
    for (const int rank : {0, 1}) job.step(event::Disconnected{rank, "connection closed"});
    const auto refused = [&](const wire::Join& join) {
        static int client = 2;
        job.step(event::Joined{++client, join});
        const auto answers = job.got(client, wire::Type::refuse);
        return answers.empty() ? wire::Refuse{} : wire::decode<wire::Refuse>(answers[0].body);
    };
    CHECK(contains(refused(job.join_of(2, 0, 2)).why, "a job of 2 ranks is running"));
    job.pass(kLonePatience + seconds(2));
    const wire::Refuse later = refused(job.join_of(2, 0, 2));  // a rank of the next job
    CHECK(contains(later.why, "has ended"));
    CHECK(later.again);
    CHECK(!refused(job.again(1)).again);
    CHECK(contains(refused(job.again(1)).why, "the job continued without this rank"));
}

TEST_CASE(
    "coordinator: of two ranks without a link the one that nobody reaches goes, or the higher") {
    for (const bool answers : {true, false}) {
        CAPTURE(answers);
        Played job(3);
        for (const int rank : {2, 1, 0}) job.join(rank, rank, 3);
        REQUIRE(job.is_welcome(0));
        job.say(2, wire::Abort{1, "it cannot reach it", wire::End::ring, 1});
        CHECK(job.probes == std::vector<uint64_t>{2});
        job.step(event::ProbeResult{2, answers, false, answers ? "" : "redial refused"});
        const int lost = answers ? 2 : 1, other = 3 - lost;
        CHECK(contains(job.left_behind(lost), "it cannot reach it"));
        for (const int rank : {0, other}) job.say(rank, job.again(rank, -1));
        for (const int rank : {0, other}) REQUIRE(job.is_welcome(rank));
        CHECK(job.ring.world == 2);
    }
}

TEST_CASE(
    "coordinator: a ring that breaks without a loss gets twice the silence, later less again") {
    Played job(3);
    job.form(3);
    const auto is_broken = [&] { return job.got(0, wire::Type::abort).size() == 1; };
    const auto form_again = [&](std::vector<int> ranks) {
        for (const int rank : ranks) job.say(rank, job.again(rank));
        for (const int rank : ranks) REQUIRE(job.is_welcome(rank));
        for (const int rank : ranks) job.say_empty(rank, wire::Type::ready);
    };
    job.pass(milliseconds(2'900), {0, 2});
    CHECK(!is_broken());
    job.pass(milliseconds(400), {0, 2});
    CHECK(is_broken());
    form_again({0, 1, 2});  // rank 1 was only slow
    CHECK(job.ring.rules.silence_ms == 6'000);
    job.pass(milliseconds(5'900), {0, 2});
    job.step(event::Tick{seconds(2)});  // this process had no processor meanwhile
    job.pass(milliseconds(1'900), {0, 2});
    CHECK(!is_broken());
    job.pass(milliseconds(400), {0, 2});
    CHECK(is_broken());
    form_again({0, 1, 2});
    CHECK(job.ring.rules.silence_ms == 12'000);
    job.pass(seconds(121), {0, 1, 2});
    job.step(event::Disconnected{1, "connection closed"});
    job.step(event::ProbeResult{2, false, false, "redial refused"});
    form_again({0, 2});
    CHECK(job.ring.rules.silence_ms == 6'000);
}

TEST_CASE("coordinator: strangers that do nothing in all seats do not keep it for ever") {
    Played job(2);
    for (const int rank : {1, 0}) job.join(rank, rank, 2);
    job.pass(kFormPatience * kSilence + milliseconds(200), {0, 1});
    for (const int rank : {0, 1}) CHECK(job.left_behind(rank) != "");
}

TEST_CASE("coordinator: at most 64 newcomers wait; one that nobody reaches costs no ring") {
    Played job(1);
    job.form(1);
    for (int client = 1; client <= 66; ++client) {
        wire::Join ask = job.again(client);
        ask.newcomer = true;
        job.step(event::Joined{client, ask});
        CHECK(job.got(client, client <= 64 ? wire::Type::status : wire::Type::refuse).size() == 1);
    }
    job.probes.clear();
    for (int visit = 1; visit <= kVisits; ++visit)
        job.step(event::ProbeResult{8, false, false, "redial refused", "connection refused"});
    CHECK(job.probes == std::vector<uint64_t>(kVisits - 1, 8));
    const std::string why = job.left_behind(7);
    for (const char* part : {"10.0.0.7:29400", "connection refused", "--port", "--advertise"})
        CHECK(contains(why, part));
    CHECK(job.got(0, wire::Type::newcomer).empty());
    job.step(event::ProbeResult{9, true});
    CHECK(job.got(0, wire::Type::newcomer).size() == 1);
}

TEST_CASE("coordinator: refused JOINs, also of lost ranks, are hung up on when others come") {
    for (const bool lost : {false, true}) {
        Played job(2);
        for (int client = 0; client < 80; ++client) {
            wire::Join join = job.join_of(client, 7, 0);
            join.job = lost;
            job.step(event::Joined{client, join});
            CHECK(job.got(client, wire::Type::refuse).size() == 1);
        }
        CHECK(job.hung_up.size() == 16);
        CHECK(*job.hung_up.rbegin() == 15);
        job.pass(kRefusedPatience + milliseconds(200));
        CHECK(job.hung_up.size() == 80);
    }
}

TEST_CASE("coordinator: strangers that join, are refused, or leave, fill no log") {
    Played job(3);
    job.join(0, 1, 3);
    for (int i = 1; i <= 200; i += 2) {
        job.join(i, 7, 3);
        job.join(i + 1, 2, 3);
        for (const int client : {i, i + 1})
            job.step(event::Disconnected{client, "connection closed"});
    }
    CHECK(job.got(0, wire::Type::status).size() <= 70);
}

TEST_CASE("coordinator: a stall time of 0 does not make it deaf") {
    Played job(1);
    wire::Join join = job.join_of(0, 0, 1);
    join.rules.stall_ms = 0;
    job.step(
        event::Joined{0, wire::decode<wire::Join>(wire::encode(join).substr(wire::kHeaderBytes))});
    REQUIRE(job.is_welcome(0));
    job.say_empty(0, wire::Type::ready);
    job.say(0, wire::Heartbeat{0, 1, 0, 0, 0, ""});  // a collective that does not move
    job.now += milliseconds(100);
    job.step(event::Tick{});
    const auto notices = job.got(0, wire::Type::notice);
    REQUIRE(notices.size() == 1);
    CHECK(contains(wire::decode_text(notices[0].body), "no byte has moved"));
}

TEST_CASE(
    "coordinator: a process without a rank may not leave, and nonsense costs the connection") {
    Played job(2, 3);
    job.join(0, 0, 2);
    job.say_empty(0, wire::Type::leave);
    CHECK(job.hung_up.contains(0));
    job.join(1, 1, 2);
    job.hear(1, wire::encode_empty(wire::Type::welcome), wire::Type::welcome);
    CHECK(job.hung_up.contains(1));
    for (const int client : {2, 3}) {
        CHECK(!job.is_welcome(2));
        job.join(client, client - 2, 2);
    }
    CHECK(job.is_welcome(3));
}

TEST_CASE("coordinator: no ring is formed without the rank in its own process") {
    Played job(2, 2);
    for (const int client : {0, 1}) job.join(client, -1, 2);
    CHECK(!job.is_welcome(0));
}
