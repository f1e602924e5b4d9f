// How a rank answers `trainer health`: while it joins, works, waits, and after its job has ended;
// and what the question finds where there is no rank.
#include "net/control/ask_health.h"

#include "src/base/clock.h"
#include "tests/fake_rank.h"
#include "tests/process.h"

namespace convoy {

using std::chrono::milliseconds;

static HealthReport ask(uint16_t port) { return ask_health(port, milliseconds(1'500)); }

static bool contains(const HealthReport& report, const std::string& text) {
    return contains(report.text, text);
}

// Asks until the answer has `text` in it, for 20 s at most; returns the last answer.
static HealthReport ask_until(uint16_t port, const std::string& text) {
    HealthReport report;
    const bool is_there = eventually([&] { return contains(report = ask(port), text); });
    INFO(report.text);
    CHECK(is_there);
    return report;
}

// What a coordinator hears of a rank that it probes.
static bool seeks(uint16_t port) {
    asio::io_context io;
    event::ProbeResult result{};
    const wire::Member rank{"", cat("127.0.0.1:", port)};
    const tcp::endpoint first;
    const TlsContext tls;
    const auto probe = [&]() -> asio::awaitable<void> {
        result = co_await probe_process(rank, first, tls);
    };
    spawn(io.get_executor(), probe());
    io.run();
    return result.seeks;
}

static uint16_t port_of(const Peer& peer) { return split_address(peer.address, "peer").second; }

TEST_CASE("health: a rank that joins is healthy and says who is missing; so is one that works") {
    Port port;
    std::promise<void> asked;
    Diary diary;
    std::thread rank0([&] {
        Job job = join(rank_options(0, 2, port), diary.log);
        job.communicator->set_progress(812, Phase::kBackward);
        job.communicator->barrier();
        asked.get_future().wait();
        job.communicator->leave();
    });
    HealthReport report = ask_until(port.get(), "joining: 1 of 2 joined, missing rank 1");
    CHECK(report.healthy);
    CHECK(seeks(port.get()));
    CHECK(answers("127.0.0.1", port.get(), std::chrono::seconds(20), ""));
    CHECK(!answers("127.0.0.1", free_port(), std::chrono::seconds(20), ""));

    Job job = join(rank_options(1, 0, port), diary.log);
    job.communicator->barrier();
    CHECK(!seeks(port.get()));
    report = ask(port_of(job.peers[0]));
    CHECK(report.healthy);
    CHECK(report.text.starts_with("rank 0 of 2, step 812, in backward for 0."));
    report = ask(port_of(job.peers[1]));
    CHECK(report.healthy);
    CHECK(report.text.starts_with("rank 1 of 2, step 0, starting for 0."));
    asked.set_value();
    job.communicator->leave();
    rank0.join();
    CHECK(!contains(diary.text(), "refused"));  // a question is nothing to log
}

TEST_CASE("health: in a stalled job every rank says whom all wait for, who alone is unhealthy") {
    Port port;
    Diary diary;
    std::promise<Peer> address1;
    std::promise<void> asked;
    std::thread rank1([&] {
        Job job = join(rank_options(1, 0, port), diary.log);
        job.communicator->set_progress(7, Phase::kData);
        address1.set_value(job.peers[1]);
        asked.get_future().wait();
        finish(job);
    });
    JoinOptions options = rank_options(0, 2, port);
    options.stall = milliseconds(300);
    Job job = join(options, diary.log);
    job.communicator->set_progress(8, Phase::kReduce);
    auto barrier = std::async(std::launch::async, [&] { job.communicator->barrier(); });
    const Peer peer1 = address1.get_future().get();
    for (const Peer& peer : {job.peers[0], peer1}) {
        const HealthReport report =
            ask_until(port_of(peer), "; no progress: step 8: all wait for rank 1 (");
        CHECK(report.healthy == (peer.number == 0));
        CHECK(contains(report, ", in data since "));
        CHECK(contains(report, cat("rank ", peer.number, " of 2, step ")));
    }
    asked.set_value();
    barrier.get();
    CHECK(eventually([&] { return !contains(ask(port_of(job.peers[0])), "no progress"); }));
    job.communicator->leave();
    rank1.join();
}

TEST_CASE(
    "health: after the job has ended by a lost rank, the others are not healthy and say why") {
    Port port;
    Diary diary;
    std::thread rank1([&] {
        FakeRank rank(1, port.get());
        rank.stand(2);
        rank.die();
    });
    Job job = join(rank_options(0, 2, port), diary.log);
    CHECK_THROWS_AS(job.communicator->barrier(), Error);
    const HealthReport report = ask(port.get());
    CHECK_FALSE(report.healthy);
    CHECK(contains(report, "; the job has ended: rank 1 ("));
    rank1.join();
}

TEST_CASE("health: nobody, a silent program and one that is no trainer are told apart") {
    CHECK(ask(free_port()).none_is_there);
    CHECK(contains(ask(free_port()), "nobody listens at port "));

    asio::io_context io;
    tcp::acceptor acceptor(io, {asio::ip::make_address("127.0.0.1"), 0});
    const auto begin = Clock::now();
    HealthReport report = ask(acceptor.local_endpoint().port());
    CHECK_FALSE(report.healthy);
    CHECK_FALSE(report.none_is_there);
    CHECK(contains(report, "has not answered in 1500 ms"));
    CHECK(seconds_since(begin) < 2);
    acceptor.accept().close();

    const std::pair<std::string, std::string> answers[] = {
        {"HTTP/1.1 400 Bad Request\r\n\r\n", "not a Convoy trainer: it sent 'HTTP/1.1'"},
        {"", "connection closed"},
        {wire::encode_empty(wire::Type::leave), "it answered LEAVE"},
        {wire::encode(wire::Health{true, "x"}).substr(0, wire::kHeaderBytes), "connection closed"},
    };
    for (const auto& [answer, text] : answers) {
        std::thread other([&acceptor, said = answer] {
            tcp::socket socket = acceptor.accept();
            char question[wire::kHeaderBytes];
            asio::read(socket, asio::buffer(question));
            asio::write(socket, asio::buffer(said));
        });
        report = ask(acceptor.local_endpoint().port());
        other.join();
        CAPTURE(report.text);
        CHECK_FALSE(report.healthy);
        CHECK(report.none_is_there);
        CHECK(contains(report, text));
    }
}

TEST_CASE("health: many questions, also malformed ones, change nothing for the job") {
    Port port;
    Diary diary;
    std::thread rank1([&] {
        Job job = join(rank_options(1, 0, port), diary.log);
        for (int i = 0; i < 300; ++i) job.communicator->barrier();
        job.communicator->leave();
    });
    Job job = join(rank_options(0, 2, port), diary.log);
    asio::io_context io;
    std::string with_body = wire::encode(wire::Health{true, "x"});
    std::string huge = wire::encode_empty(wire::Type::health);
    huge[22] = 1;  // 2^48 bytes of body
    for (int i = 0; i < 300; ++i) {
        job.communicator->barrier();
        tcp::socket stranger(io);
        stranger.connect({asio::ip::make_address("127.0.0.1"), port.get()});
        std::error_code gone;
        asio::write(stranger,
                    asio::buffer(i % 3 == 0   ? huge
                                 : i % 3 == 1 ? with_body
                                              : "CNVY"),
                    gone);
    }
    CHECK(ask(port.get()).healthy);
    job.communicator->leave();
    rank1.join();
    CHECK(contains(diary.text(), "HEALTH message of 281474976710656 bytes"));
}

TEST_CASE("health: the command ends with 0 or with 1 and one sentence") {
    auto [status, output] = run_trainer({"health", "--port", cat(free_port())});
    CHECK(status == 1);
    CHECK(output.starts_with("error: nobody listens at port "));
    CHECK(std::count(output.begin(), output.end(), '\n') == 1);

    // A run alone has no port. Another trainer may use the default one on this machine.
    std::tie(status, output) = run_trainer({"health"});
    CHECK((status == 0 || !contains(output, "29400")));

    const std::string at = cat("127.0.0.1:", free_port());
    TempDir folder;
    Process rank0(folder, "rank0",
                  {"bench", "allreduce", "--coord", at, "--rank", "0", "--world", "2"});
    const auto is_waiting = [&] {
        std::tie(status, output) = run_trainer({"health", "--coord", at});
        return output == "joining: 1 of 2 joined, missing rank 1\n";
    };
    CHECK(eventually(is_waiting));
    CHECK(status == 0);
}

}  // namespace convoy
