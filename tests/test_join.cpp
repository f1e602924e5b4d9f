#include <signal.h>
#include <sys/wait.h>

#include "src/plan/tune.h"  // free_port
#include "tests/call_hooks.h"
#include "tests/fake_rank.h"

namespace convoy {

using std::chrono::milliseconds;

// Something that is no trainer, which sends `answer` to whoever connects.
class Impostor {
 public:
    explicit Impostor(std::string answer)
        : acceptor_(io_, {asio::ip::make_address("127.0.0.1"), 0}),
          thread_([this, answer = std::move(answer)] {
              tcp::socket socket = acceptor_.accept();
              char request[16];
              std::error_code gone;
              asio::read(socket, asio::buffer(request), gone);
              asio::write(socket, asio::buffer(answer), gone);
          }) {}
    ~Impostor() { thread_.join(); }
    uint16_t port() const { return acceptor_.local_endpoint().port(); }

 private:
    asio::io_context io_;
    tcp::acceptor acceptor_;
    std::thread thread_;
};

TEST_CASE("an address is a host with or without a port, and a bad one is an error that names it") {
    using Address = std::pair<std::string, uint16_t>;
    CHECK(split_address("node1:29401", "--coord") == Address("node1", 29401));
    CHECK(split_address("node1", "--coord") == Address("node1", 0));
    CHECK(split_address("[fd77::1]:80", "--coord") == Address("fd77::1", 80));
    CHECK(split_address("[fd77::1]", "--coord") == Address("fd77::1", 0));
    CHECK(split_address("fd77::1", "--coord") == Address("fd77::1", 0));
    for (const char* bad : {"node1:0", "node1:65536", "node1:29x", "node1:", "node1:-1"})
        CHECK_FAILS(split_address(bad, "--coord"), cat("--coord ", bad, " has no"));
    CHECK_THROWS_WITH_AS(split_address(":80", "--coord"),
                         "--coord :80 names no host; it takes HOST:PORT, PORT from 1 to 65535",
                         Error);
    CHECK_FAILS(split_address("[fd77::1", "--advertise"), "--advertise [fd77::1 has a bracket");
}

TEST_CASE("ranks may start in any order, the coordinator last") {
    const uint16_t port = free_port();
    Diary diary;
    std::vector<std::thread> early;
    for (int rank : {2, 1})
        early.emplace_back([&, rank] {
            Job job = join(rank_options(rank, 0, port), diary.log);
            CHECK(job.communicator->rank() == rank);
            CHECK(job.communicator->world() == 3);
            finish(job);
        });
    while (!contains(diary.text(), "connection refused; trying again until"))
        std::this_thread::yield();
    Job job = join(rank_options(0, 3, port), diary.log);
    CHECK(job.peers.size() == 3);
    CHECK(job.peers[2].address.find("127.0.0.1:") == 0);
    finish(job);
    for (std::thread& thread : early) thread.join();
}

TEST_CASE("ranks without a number are given one each") {
    Port port;
    Diary diary;
    std::atomic<int> seen{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i)
        threads.emplace_back([&, i] {
            JoinOptions options = rank_options(i == 0 ? 0 : -1, i == 0 ? 3 : 0, port);
            Job job = join(options, diary.log);
            seen += 1 << job.communicator->rank();
            finish(job);
        });
    for (std::thread& thread : threads) thread.join();
    CHECK(seen == 7);
}

TEST_CASE("a duplicate rank and another world are refused by name, the job forms without them") {
    Port port;
    Diary diary;
    std::thread rank0([&] { finish(join(rank_options(0, 2, port), diary.log)); });
    const uint16_t at = port.get();
    while (!contains(diary.text(), "1 of 2")) std::this_thread::yield();  // it hears of refusals
    CHECK_FAILS(join(rank_options(1, 3, at), diary.log), "says --world 3");
    JoinOptions twice = rank_options(0, 2, port.get());
    CHECK_FAILS(join(twice, diary.log), "rank 0 is wanted by both");
    finish(join(rank_options(1, 2, port.get()), diary.log));
    rank0.join();
    CHECK(count_of(diary.text(), "says --world 3") == 1);  // a refused rank asks once
}

TEST_CASE("strangers at the port, silent, talking or of another version, do not disturb the job") {
    Port port;
    Diary diary;
    std::thread rank0([&] { finish(join(rank_options(0, 2, port), diary.log)); });
    FakeRank silent(1, port.get()), web(1, port.get()), old(1, port.get()), cut(1, port.get());
    web.send("GET / HTTP/1.1\r\nHost: here\r\n\r\n");
    std::string join_message = wire::encode(wire::Join{});
    cut.send(join_message.substr(0, 30));
    join_message[4] = char(wire::kVersion + 1);
    old.send(join_message);
    const Message answer = old.await(wire::Type::refuse);
    CHECK(contains(wire::decode<wire::Refuse>(answer.body).why, "run the same build"));

    finish(join(rank_options(1, 2, port.get()), diary.log));
    rank0.join();
}

TEST_CASE("an answer to LINK of another job or rank is none: the rank dials again") {
    Diary diary;
    Port port;
    asio::io_context io;
    tcp::acceptor acceptor(io, {asio::ip::make_address("127.0.0.1"), 0});
    const auto run = [&](int rank) { join(rank_options(rank, 3, port), diary.log); };
    auto rank0 = std::async(std::launch::async, run, 0), rank2 = std::async(run, 2);
    FakeRank rank1(1, port.get());
    rank1.join(3, cat("127.0.0.1:", acceptor.local_endpoint().port()));
    rank1.await_welcome();
    rank1.open_link();
    const wire::Welcome& w = rank1.welcome();
    const wire::Link answers[] = {{w.job ^ 1, 1, 2, w.generation},
                                  {w.job, 2, 2, w.generation},
                                  {w.job, 1, 2, w.generation}};  // right
    std::vector<tcp::socket> kept;
    for (size_t i = 0; i < std::size(answers); ++i) {
        REQUIRE(has_news(acceptor));
        kept.push_back(acceptor.accept());
        CHECK(wire::decode<wire::Link>(FakeRank::hear(kept.back()).body).to == 1);
        FakeRank::say(kept.back(), wire::encode(answers[i]));
    }
    rank1.ready();
    CHECK_NOTHROW(rank0.get());
    CHECK_NOTHROW(rank2.get());
}

TEST_CASE("a rank whose place in the queue is given up can be taken by another") {
    Port port;
    Diary diary;
    std::thread rank0([&] { finish(join(rank_options(0, 3, port), diary.log)); });
    {
        FakeRank frozen(1, port.get()), gone(1, port.get());
        frozen.join(3);
        frozen.await(wire::Type::status);
        gone.join(3);  // the same rank at the same port: the one before can only be dead
        CHECK_THROWS_AS(frozen.await(wire::Type::welcome), std::system_error);
        gone.await(wire::Type::status);
    }
    // The coordinator hears of the hang-up in its own time; until then the place counts as taken.
    Diary second;
    REQUIRE(eventually([&] { return count_of(diary.text(), "127.0.0.1:9 has left") >= 2; }));
    std::thread rank1([&] { finish(join(rank_options(1, 0, port.get()), second.log)); });
    finish(join(rank_options(2, 0, port.get()), second.log));
    rank1.join();
    rank0.join();
}

TEST_CASE("joining says what is wrong: refused, not a trainer, another version, an unknown name") {
    Diary diary;
    JoinOptions nobody = rank_options(1, 2, free_port());
    nobody.join_timeout = milliseconds(150);
    CHECK_FAILS(join(nobody, diary.log), "connection refused; is rank 0");

    Impostor web("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
    CHECK_FAILS(join(rank_options(1, 2, web.port()), diary.log),
                "not a Convoy trainer: it sent 'HTTP/1.1'");

    std::string welcome = wire::encode_empty(wire::Type::status);
    welcome[4] = char(wire::kVersion + 1);
    Impostor newer(welcome);
    CHECK_FAILS(join(rank_options(1, 2, newer.port()), diary.log),
                cat("version ", wire::kVersion + 1, " of the protocol, this trainer speaks ",
                    wire::kVersion));
}

TEST_CASE("joining: OFFER to a rank that has a number, and WELCOME to a newcomer, are errors") {
    Diary diary;
    const std::vector<wire::Member> peers = {{"h", "127.0.0.1:1", 5}};
    Impostor offers(wire::encode(wire::Offer{.job = 7, .peers = peers}));
    CHECK_FAILS(join(rank_options(1, 2, offers.port()), diary.log), "OFFER");
    Impostor welcomes(
        wire::encode(wire::Welcome{.job = 7, .world = 1, .peers = peers, .ring = {0}, .id = 9}));
    JoinOptions newcomer = rank_options(-1, 0, welcomes.port());
    newcomer.newcomer = newcomer.elastic = true;
    CHECK_FAILS(join(newcomer, diary.log), "WELCOME");
}

TEST_CASE(
    "joining: a link that is dialled again is answered, and a CONVOY_STALL of 58 days arrives") {
    Diary diary;
    Port port;
    std::thread other([&] {
        FakeRank rank(1, port.get());
        rank.join(2);
        rank.await_welcome();
        CHECK(rank.welcome().rules.stall_ms == UINT32_MAX);
        rank.open_link();
        CHECK(rank.dials_again());  // rank 0 has said READY
        rank.ready();
    });
    JoinOptions options = rank_options(0, 2, port);
    options.stall = std::chrono::seconds(5'000'000);
    Job job = join(options, diary.log);
    CHECK(job.communicator->world() == 2);
    other.join();
}

TEST_CASE("joining: neither a signal nor the end of the time waits for a slow DNS") {
    std::promise<void> end;
    on_look_up = [done = end.get_future().share()] { done.wait(); };
    Diary diary;
    JoinOptions options = rank_options(1, 2, 9);
    options.host = "slow.test";
    auto stopped = std::async(std::launch::async, [&] {
        CHECK_FAILS(join(options, diary.log, [] { return 15; }), "stopped by signal 15");
    });
    CHECK(stopped.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
    const milliseconds patience = std::exchange(name_patience, milliseconds(10));
    options.join_timeout = milliseconds(1);
    auto late = std::async(std::launch::async,
                           [&] { CHECK_FAILS(join(options, diary.log), "'slow.test'"); });
    CHECK(late.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
    end.set_value();
    stopped.get(), late.get();
    name_patience = patience;  // on_look_up stays: a look-up may be in it still, and returns now
}

TEST_CASE("a peer is dead for certain only if each of its addresses refuses") {
    const auto is_dead = [](std::vector<tcp::endpoint> endpoints) {
        asio::io_context io;
        auto dialled = asio::co_spawn(
            io,
            [&]() -> asio::awaitable<bool> {
                try {
                    co_await dial(endpoints, {}, milliseconds(100));
                } catch (const NotReached& e) {
                    CHECK(contains(std::string(e.what()), "connection refused"));
                    co_return e.all_refused;
                }
                co_return false;
            },
            asio::use_future);
        io.run();
        return dialled.get();
    };
    const tcp::endpoint refuses{asio::ip::make_address("127.0.0.1"), free_port()};
    const tcp::endpoint unreached{asio::ip::make_address("255.255.255.255"), 9};
    CHECK(is_dead({refuses}));
    CHECK(is_dead({refuses, refuses}));
    CHECK_FALSE(is_dead({refuses, unreached}));
    CHECK_FALSE(is_dead({unreached, refuses}));
}

static asio::awaitable<void> throw_unexpected() {
    throw std::logic_error("nobody expects this");
    co_return;
}

TEST_CASE("spawn: an exception that nobody expects ends the process with its text") {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        asio::io_context io;
        spawn(io.get_executor(), throw_unexpected());
        io.run();
        _exit(0);
    }
    close(ends[1]);
    std::string text;
    char bytes[512];
    for (ssize_t n; (n = read(ends[0], bytes, sizeof bytes)) > 0;) text.append(bytes, size_t(n));
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status));
    CHECK(contains(text, "nobody expects this"));
}

TEST_CASE("a coordinator that ends while a rank waits there may be followed by another") {
    Diary diary;
    Impostor ends(wire::encode_empty(wire::Type::leave));
    JoinOptions options = rank_options(1, 2, ends.port());
    options.join_timeout = milliseconds(1);  // else it would dial again
    CHECK_FAILS(join(options, diary.log), "no job at ");
}

TEST_CASE("rank 0 waits for the others no longer than the join timeout, and says who is missing") {
    Diary diary;
    JoinOptions alone = rank_options(0, 3, 0);
    alone.join_timeout = milliseconds(150);
    CHECK_FAILS(join(alone, diary.log), "missing rank 1-2");
}

TEST_CASE("joining refuses a world or rank that cannot be, and ends at once when told to stop") {
    Diary diary;
    CHECK_FAILS(join(rank_options(4, 4, 1), diary.log), "--rank 4 cannot be in a world of 4");
    CHECK_FAILS(join(rank_options(0, -1, 1), diary.log), "--world -1");
    CHECK_FAILS(join(rank_options(1, 2, free_port()), diary.log, [] { return 15; }),
                "stopped by signal 15");
}

TEST_CASE("ranks of the next job wait at the port of a job that still runs, then form theirs") {
    Diary first, next;
    Port port;
    std::promise<void> runs;
    const auto run_first = [&](int rank) {
        Job job = join(rank_options(rank, 2, port), first.log);
        if (rank == 0) runs.set_value();
        CHECK(eventually([&] { return count_of(next.text(), "a job of 2 ranks is running") > 1; }));
        finish(job);
    };
    std::vector<std::thread> threads;
    for (const int rank : {0, 1}) threads.emplace_back(run_first, rank);
    runs.get_future().wait();
    for (const int rank : {0, 1})
        threads.emplace_back([&, rank] { sum_once(rank_options(rank, 2, port.get()), next.log); });
    for (std::thread& thread : threads) thread.join();
}

}  // namespace convoy
