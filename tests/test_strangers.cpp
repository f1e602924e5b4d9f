// What strangers at the port may do: nothing that a rank would notice.
#include <optional>

#include "net/coordinator.h"
#include "net/health.h"
#include "net/listener.h"
#include "net/tls.h"
#include "tests/fake_rank.h"

namespace convoy {

using std::chrono::milliseconds;

static const wire::Rules elastic{false, true};

static JoinOptions options_for(int rank, uint16_t port) {
    JoinOptions options;
    options.host = "127.0.0.1";
    options.port = port;
    options.rank = rank;
    options.world = 2;
    options.heartbeat = milliseconds(100);
    options.join_timeout = milliseconds(20'000);
    return options;
}

// Two ranks of a coordinator join, sum and leave.
static void run_two_ranks(uint16_t port, Log& log) {
    const auto run = [&](int rank) {
        Job job = join(options_for(rank, port), log);
        std::vector<float> one{1};
        job.communicator->allreduce_sum(one).get();
        CHECK(one[0] == 2);
        job.communicator->barrier();
        job.communicator->leave();
    };
    std::thread other([&] { run(1); });
    run(0);
    other.join();
}

// Whether the other end says REFUSE and closes the connection within 20 s.
static bool is_refused(tcp::socket& socket) {
    bool refused = false;
    try {
        while (has_news(socket))
            refused |= FakeRank::hear(socket).header.type == wire::Type::refuse;
    } catch (const std::system_error&) {
        return refused;
    }
    return false;
}

// Whether the other end has closed the connection; waits for it, or for bytes.
static bool is_closed(tcp::socket& socket) {
    char byte;
    std::error_code error;
    asio::read(socket, asio::buffer(&byte, 1), error);
    return bool(error);
}

TEST_CASE("of many silent connections the oldest are closed, and ranks still get in") {
    Diary diary;
    LoneCoordinator coordinator(2, diary.log());
    asio::io_context io;
    std::vector<tcp::socket> silent;
    for (int i = 0; i < 100; ++i) {
        silent.emplace_back(io);
        silent.back().connect({asio::ip::make_address("127.0.0.1"), coordinator.port()});
    }
    for (int i = 0; i < 84; ++i) CHECK(is_closed(silent[size_t(i)]));  // 16 of one address stay
    for (size_t i = 84; i < 100; ++i) {
        silent[i].non_blocking(true);
        char byte;
        std::error_code error;
        silent[i].read_some(asio::buffer(&byte, 1), error);
        CHECK(error == asio::error::would_block);
    }
    run_two_ranks(coordinator.port(), diary.log());
}

TEST_CASE("of silent connections from many addresses 64 stay, the oldest are closed") {
    Diary diary;
    LoneCoordinator coordinator(2, diary.log());
    asio::io_context io;
    std::vector<tcp::socket> silent;
    for (int i = 0; i < 80; ++i) {
        silent.emplace_back(io,
                            tcp::endpoint(asio::ip::make_address(cat("127.0.0.", 2 + i % 8)), 0));
        silent.back().connect({asio::ip::make_address("127.0.0.1"), coordinator.port()});
    }
    for (size_t i = 0; i < 80; ++i) {
        char byte;
        std::error_code error;
        if (i < 16) REQUIRE(has_news(silent[i]));
        silent[i].non_blocking(true);
        silent[i].read_some(asio::buffer(&byte, 1), error);
        CHECK((error == asio::error::would_block) == (i >= 16));
    }
}

TEST_CASE("who says nothing, or half of a handshake, is hung up on after a while") {
    const milliseconds patience = std::exchange(first_message_patience, milliseconds(50));
    for (const std::string& token : {std::string(), make_token()}) {
        Diary diary;
        std::optional<LoneCoordinator> coordinator;
        coordinator.emplace(2, diary.log(), Access{token});
        asio::io_context io;
        tcp::socket silent(io), slow(io);
        for (tcp::socket* stranger : {&silent, &slow})
            stranger->connect({asio::ip::make_address("127.0.0.1"), coordinator->port()});
        asio::write(slow, asio::buffer(token.empty() ? "CNVY" : "\x16\x03\x01\x40", 4));
        for (tcp::socket* stranger : {&silent, &slow}) {
            REQUIRE(has_news(*stranger));
            CHECK(is_closed(*stranger));
        }
        coordinator.reset();  // which logs it after it has hung up
        CHECK(diary.text().find("it connected and sent nothing") != std::string::npos);
    }
    first_message_patience = patience;
}

TEST_CASE("refused JOINs and REJOINs that stay are hung up on when others come") {
    Diary diary;
    LoneCoordinator coordinator(2, diary.log());
    wire::Join join;
    join.rank = 7;  // of a world of 2
    join.address = "127.0.0.1:9";
    for (const std::string& first : {wire::encode(join), wire::encode(wire::Rejoin{})}) {
        asio::io_context io;
        std::vector<tcp::socket> refused;
        for (int i = 0; i < 80; ++i) {
            refused.emplace_back(io);
            refused.back().connect({asio::ip::make_address("127.0.0.1"), coordinator.port()});
            FakeRank::say(refused.back(), first);
        }
        for (size_t i = 0; i < 16; ++i) REQUIRE(is_refused(refused[i]));
        for (size_t i = 16; i < 80; ++i) {  // which hear why
            REQUIRE(has_news(refused[i]));
            refused[i].non_blocking(true);
            char bytes[1000];
            std::error_code error;
            while (!error) refused[i].read_some(asio::buffer(bytes), error);
            CHECK(error == asio::error::would_block);
        }
    }
    run_two_ranks(coordinator.port(), diary.log());
}

static int64_t count(const std::string& text, const std::string& what) {
    int64_t n = 0;
    for (size_t at = 0; (at = text.find(what, at)) != text.npos; at += what.size()) ++n;
    return n;
}

TEST_CASE("strangers that join, are refused, or leave, fill no log") {
    Diary diary;
    LoneCoordinator coordinator(3, diary.log());
    FakeRank rank(1, coordinator.port());
    rank.join(3);
    for (int i = 0; i < 100; ++i) {
        FakeRank refused(7, coordinator.port()), comes(2, coordinator.port());
        refused.join(3, "127.0.0.1:10");
        refused.await(wire::Type::refuse);
        comes.join(3, cat("127.0.0.1:", i + 1));
        comes.await(wire::Type::status);
    }
    const std::string text = diary.text();
    CHECK(count(text, "was refused") == 10);
    CHECK(count(text, "joined, missing") == 60);
    int told = 0;
    rank.send(std::string(wire::kHeaderBytes, '?'));  // so it is hung up on
    try {
        for (;; ++told) rank.await(wire::Type::status);
    } catch (const std::system_error&) {
        CHECK(told <= 70);
    }
}

TEST_CASE("at most 64 newcomers wait at a time") {
    Diary diary;
    LoneCoordinator coordinator(2, diary.log());
    FakeRank zero(0, coordinator.port()), one(1, coordinator.port());
    one.join(2);
    zero.join(2, "127.0.0.1:10", elastic);
    for (FakeRank* rank : {&zero, &one}) rank->await_welcome();  // and the ring stays unformed
    asio::io_context io;
    tcp::acceptor silent(io, {asio::ip::make_address("127.0.0.1"), 0});
    std::vector<std::unique_ptr<FakeRank>> newcomers;
    for (int i = 0; i < 66; ++i) {
        wire::Rejoin ask;
        ask.job = zero.welcome().job, ask.process = uint64_t(i + 100);
        ask.address = cat("127.0.0.1:", silent.local_endpoint().port());
        newcomers.push_back(std::make_unique<FakeRank>(-1, coordinator.port()));
        newcomers.back()->send(wire::encode(ask));
        newcomers.back()->await(i < 64 ? wire::Type::status : wire::Type::refuse);
    }
}

TEST_CASE("a newcomer at whose address nobody answers is told so, and costs no ring") {
    Diary diary;
    LoneCoordinator coordinator(1, diary.log());
    FakeRank rank(0, coordinator.port()), newcomer(-1, coordinator.port());
    rank.join(1, "127.0.0.1:10", elastic);
    rank.await_welcome();
    rank.ready();
    wire::Rejoin ask;
    ask.job = rank.welcome().job, ask.process = 7, ask.address = "127.0.0.1:9";
    newcomer.send(wire::encode(ask));
    CHECK(newcomer.await_end(wire::End::membership) ==
          "the coordinator does not reach this rank at 127.0.0.1:9: connection refused; is a "
          "firewall in the way, or --port or --advertise wrong?");
    rank.send(wire::encode_empty(wire::Type::leave));
    for (Message message; message.header.type != wire::Type::leave; message = rank.hear_next())
        CHECK(message.header.type != wire::Type::newcomer);
}

// Two elastic ranks and a stranger that has a seat between them: they sum without it.
static void run_without(const std::function<void(FakeRank&)>& stranger) {
    Diary diary;
    LoneCoordinator coordinator(3, diary.log());
    const auto run = [&](int rank) {
        JoinOptions options = options_for(rank, coordinator.port());
        options.world = 3;
        options.elastic = true;
        Job job = join(options, diary.log());
        std::vector<float> one{1};
        CHECK_THROWS_AS(job.communicator->allreduce_sum(one).get(), RingBroken);
        CHECK(job.communicator->regroup(-1, false).why.find("rank 1 (127.0.0.1:9) l") !=
              std::string::npos);
        job.communicator->allreduce_sum(one).get();
        CHECK(one[0] == 2);
        job.communicator->barrier();
        job.communicator->leave();
    };
    FakeRank fake(1, coordinator.port());
    fake.join(3);
    std::thread zero([&] { run(0); }), two([&] { run(2); });
    fake.await_welcome();
    stranger(fake);
    zero.join();
    two.join();
}

TEST_CASE("elastic: a stranger that takes a seat and leaves, or opens no edges, is left out") {
    run_without([](FakeRank& fake) { fake.send(wire::encode_empty(wire::Type::leave)); });
    run_without([](FakeRank& fake) {
        CHECK(fake.await_end(wire::End::membership).find("cannot reach rank 1") !=
              std::string::npos);
    });
}

TEST_CASE("elastic: of two ranks without an edge the one that nobody reaches goes, or the higher") {
    for (const bool answers : {true, false}) {
        CAPTURE(answers);
        Diary diary;
        LoneCoordinator coordinator(3, diary.log());
        asio::io_context io;
        tcp::acceptor acceptor(io, {asio::ip::make_address("127.0.0.1"), 0});
        std::vector<std::unique_ptr<FakeRank>> ranks;
        for (int rank : {0, 1, 2}) {
            ranks.push_back(std::make_unique<FakeRank>(rank, coordinator.port()));
            wire::Join joins;
            joins.rank = rank, joins.world = 3;
            joins.rules.elastic = true;
            joins.process = uint64_t(rank + 5);
            joins.address = rank == 1 ? cat("127.0.0.1:", acceptor.local_endpoint().port())
                                      : cat("127.0.0.1:", rank + 8);
            ranks.back()->send(wire::encode(joins));
        }
        for (auto& rank : ranks) rank->await_welcome();
        const wire::Welcome first = ranks[2]->welcome();
        ranks[2]->send(
            wire::encode(wire::Abort{1, "it cannot reach it", wire::End::ring, first.generation}));
        REQUIRE(has_news(acceptor));
        tcp::socket probe = acceptor.accept();
        CHECK(FakeRank::hear(probe).header.type == wire::Type::health);
        FakeRank::say(probe, wire::encode(wire::Health{true, "", answers ? 6u : 7u}));
        const int lost = answers ? 2 : 1, other = 3 - lost;
        CHECK(ranks[size_t(lost)]->await_end(wire::End::membership).find("it cannot reach it") !=
              std::string::npos);
        for (const int rank : {0, other}) {
            ranks[size_t(rank)]->await_end(wire::End::ring);
            wire::Rejoin back{first.job, uint64_t(rank + 5), -1, "the ring broke"};
            ranks[size_t(rank)]->send(wire::encode(back));
        }
        for (const int rank : {0, other}) ranks[size_t(rank)]->await_welcome();
        CHECK(ranks[0]->welcome().world == 2);
    }
}

TEST_CASE("elastic: strangers that do nothing in all seats do not keep the coordinator for ever") {
    const milliseconds patience = std::exchange(form_patience, milliseconds(300));
    Diary diary;
    LoneCoordinator coordinator(2, diary.log());
    FakeRank zero(0, coordinator.port()), one(1, coordinator.port());
    one.join(2);
    zero.join(2, "127.0.0.1:10", elastic);
    for (FakeRank* rank : {&zero, &one}) rank->await_end(wire::End::membership);
    form_patience = patience;
    run_two_ranks(coordinator.port(), diary.log());
}

TEST_CASE("refused strangers get ten lines a minute; the next line counts those left out") {
    Refusals refusals;
    const Clock::time_point begin = Clock::now();
    int lines = 0;
    for (int i = 0; i < 9; ++i) lines += refusals.line(begin, "refused") == "refused";
    CHECK(refusals.line(begin, "refused") == "refused (others in this minute are only counted)");
    for (int i = 9; i < 500; ++i)
        lines += !refusals.line(begin + milliseconds(100 * i), "refused").empty();
    CHECK(lines == 9);
    CHECK(refusals.line(begin + std::chrono::seconds(61), "refused") ==
          "refused (491 others were refused since the last line)");
    CHECK(refusals.line(begin + std::chrono::seconds(62), "refused") == "refused");
}

TEST_CASE("in calm connections wait after the first 256; where one may be urgent, none does") {
    Diary diary;
    asio::io_context io;
    LogQueue lines(diary.log());
    Listener listener(io, lines, {});
    std::atomic<bool> calm{true};
    std::atomic<int> asked{0};
    listener.is_calm = [&] { return ++asked, calm.load(); };
    listener.on_health = [] { return wire::Health{true, "well"}; };
    listener.open(asio::ip::make_address("127.0.0.1"), 0);
    const uint16_t port = listener.port();
    std::thread thread([&] { io.run(); });
    const auto visits = [&](int count) {
        int answered = 0;
        for (int i = 0; i < count; ++i)
            answered += answers("127.0.0.1", port, milliseconds(20'000), {});
        return answered;
    };
    CHECK(visits(250) == 250);
    CHECK(asked <= 250);  // once each: nobody has waited
    CHECK(visits(150) == 150);
    CHECK(asked > 400);
    calm = false;
    CHECK(visits(1) == 1);  // the last wait may be under way still
    const int before = asked;
    CHECK(visits(100) == 100);
    CHECK(asked <= before + 101);
    listener.close();
    io.stop();
    thread.join();
}

TEST_CASE("nobody without a rank may announce a long message, or leave") {
    Diary diary;
    LoneCoordinator coordinator(2, diary.log());
    FakeRank longwinded(1, coordinator.port()), early(1, coordinator.port());
    longwinded.join(2);
    longwinded.await(wire::Type::status);
    std::string header(wire::kHeaderBytes, '\0');
    wire::encode({wire::Type::notice, 0, 0, wire::kGuestLimit + 1},
                 std::as_writable_bytes(std::span(header)).first<wire::kHeaderBytes>());
    longwinded.send(header);
    CHECK_THROWS_AS(longwinded.await(wire::Type::welcome), std::system_error);
    early.join(2, "127.0.0.1:10");
    early.await(wire::Type::status);
    early.send(wire::encode_empty(wire::Type::leave));
    CHECK_THROWS_AS(early.await(wire::Type::welcome), std::system_error);
    run_two_ranks(coordinator.port(), diary.log());
}

TEST_CASE("a JOIN with a stall time of 0 does not make the coordinator deaf") {
    Diary diary;
    LoneCoordinator coordinator(1, diary.log());
    wire::Join join;
    join.world = 1;
    join.rules.stall_ms = 0;
    join.address = "127.0.0.1:9";
    FakeRank rank(0, coordinator.port());
    rank.send(wire::encode(join));
    rank.await_welcome();
    rank.ready();
    wire::Heartbeat waiting;
    waiting.begun = 1;  // a collective that does not move
    rank.beat(waiting);
    CHECK(wire::decode_text(rank.await(wire::Type::notice).body).find("no byte has moved") !=
          std::string::npos);
}  // and the coordinator ends when it is told to

TEST_CASE("a stranger's JOIN writes no lines of its own into the log") {
    Diary diary;
    LoneCoordinator coordinator(2, diary.log());
    FakeRank forger(1, coordinator.port());
    forger.join(2, "x\nerror: rank 7\x1b[31m was lost");
    forger.await(wire::Type::status);
    forger.die();
    FakeRank longwinded(1, coordinator.port());
    longwinded.join(2, std::string(256, 'x'));
    CHECK_THROWS_AS(longwinded.await(wire::Type::status), std::system_error);
    run_two_ranks(coordinator.port(), diary.log());
    const std::string text = diary.text();
    CHECK(text.find("\nerror") == std::string::npos);
    CHECK(text.find('\x1b') == std::string::npos);
    CHECK(text.find("x?error: rank 7?[31m was lost") != std::string::npos);
    CHECK(text.find("an address of more than 255 bytes") != std::string::npos);
}

TEST_CASE("a peer that does not read loses the connection after 1 MB") {
    asio::io_context io;
    tcp::acceptor acceptor(io, {asio::ip::make_address("127.0.0.1"), 0});
    tcp::socket deaf(io);
    deaf.connect(acceptor.local_endpoint());
    const auto connection = std::make_shared<Connection>(acceptor.accept());
    size_t sent = 0;
    for (; connection->is_open() && sent < (64 << 20); sent += 100'000) {
        connection->send(std::string(100'000, 'x'));
        io.restart();
        io.poll();  // as much as the kernel takes
    }
    CHECK_FALSE(connection->is_open());
    CHECK(sent > 1'000'000);
    connection->send("nothing more");
}

TEST_CASE("many peers that do not read lose their connections after 64 MB together") {
    asio::io_context io;
    tcp::acceptor acceptor(io, {asio::ip::make_address("127.0.0.1"), 0});
    std::vector<tcp::socket> deaf;
    std::vector<std::shared_ptr<Connection>> connections;
    for (int i = 0; i < 100; ++i) {
        deaf.emplace_back(io);
        deaf.back().connect(acceptor.local_endpoint());
        connections.push_back(std::make_shared<Connection>(acceptor.accept()));
    }
    for (int i = 0; i < 9; ++i)  // nothing is written before the io_context runs
        for (auto& connection : connections) connection->send(std::string(100'000, 'x'));
    const auto open = std::ranges::count_if(connections, [](auto& c) { return c->is_open(); });
    CHECK(open < 100);
    for (auto& connection : connections) connection->close();
    io.run();
    connections.front() = std::make_shared<Connection>(([&] {
        deaf.emplace_back(io);
        deaf.back().connect(acceptor.local_endpoint());
        return acceptor.accept();
    })());
    for (int i = 0; i < 9; ++i) connections.front()->send(std::string(100'000, 'x'));
    CHECK(connections.front()->is_open());  // what is not sent any more does not count
}

}  // namespace convoy
