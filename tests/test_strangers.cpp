// What strangers at the port may do: nothing that a rank would notice.
#include <optional>

#include "net/control/ask_health.h"
#include "net/control/listener.h"
#include "net/control/tls.h"
#include "tests/fake_rank.h"

namespace convoy {

using std::chrono::milliseconds;

// Whether the other end has closed the connection; waits for it, or for bytes.
static bool is_closed(tcp::socket& socket) {
    char byte;
    std::error_code error;
    asio::read(socket, asio::buffer(&byte, 1), error);
    return bool(error);
}

TEST_CASE("silent connections: 16 of an address and 64 in all stay, and ranks still get in") {
    for (const auto& [count, addresses, stay] : {std::tuple(100, 1, 16), {80, 8, 64}}) {
        Diary diary;
        RankZero rank0(2, diary);
        asio::io_context io;
        std::vector<tcp::socket> silent;
        for (int i = 0; i < count; ++i) {
            const std::string from = cat("127.0.0.", 1 + i % addresses);
            silent.emplace_back(io, tcp::endpoint(asio::ip::make_address(from), 0));
            silent.back().connect({asio::ip::make_address("127.0.0.1"), rank0.port()});
        }
        for (int i = 0; i < count; ++i) {  // the oldest are closed
            char byte;
            std::error_code error;
            tcp::socket& one = silent[size_t(i)];
            if (i < count - stay) REQUIRE(has_news(one));
            one.non_blocking(true);
            one.read_some(asio::buffer(&byte, 1), error);
            CHECK((error == asio::error::would_block) == (i >= count - stay));
        }
        if (addresses == 1) sum_once(rank_options(1, 2, rank0.port()), diary.log);
    }
}

TEST_CASE("who says nothing, or half of a handshake, is hung up on after a while") {
    const milliseconds patience = std::exchange(first_message_patience, milliseconds(50));
    for (const std::string& token : {std::string(), make_token()}) {
        Diary diary;
        std::optional<RankZero> rank0;
        rank0.emplace(2, diary, Access{token});
        asio::io_context io;
        tcp::socket silent(io), slow(io);
        for (tcp::socket* stranger : {&silent, &slow})
            stranger->connect({asio::ip::make_address("127.0.0.1"), rank0->port()});
        asio::write(slow, asio::buffer(token.empty() ? "CNVY" : "\x16\x03\x01\x40", 4));
        for (tcp::socket* stranger : {&silent, &slow}) {
            REQUIRE(has_news(*stranger));
            CHECK(is_closed(*stranger));
        }
        rank0.reset();  // which logs it after it has hung up
        CHECK(contains(diary.text(), "it connected and sent nothing"));
    }
    first_message_patience = patience;
}

// Two elastic ranks and a stranger that has a seat between them: they sum without it.
static void run_without(const std::function<void(FakeRank&)>& stranger) {
    Diary diary;
    Port port;
    const auto run = [&](int rank) {
        JoinOptions options = rank_options(rank, 3, port);
        options.elastic = true;
        Job job = join(options, diary.log);
        std::vector<float> one{1};
        CHECK_THROWS_AS(job.communicator->allreduce_sum(one).get(), RingBroken);
        const Ranks ranks = job.communicator->regroup(-1, false);
        CHECK(contains(ranks.why, "rank 1 (127.0.0.1:9) l"));
        CHECK(ranks.peers.back().number == 2);  // its name stays
        job.communicator->allreduce_sum(one).get();
        CHECK(one[0] == 2);
        finish(job);
    };
    std::thread zero([&] { run(0); }), two([&] { run(2); });
    FakeRank fake(1, port.get());
    fake.join(3);
    fake.await_welcome();
    stranger(fake);
    zero.join();
    two.join();
}

TEST_CASE("elastic: a stranger that takes a seat and leaves, or opens no links, is left out") {
    run_without([](FakeRank& fake) { fake.send(wire::encode_empty(wire::Type::leave)); });
    run_without([](FakeRank& fake) {
        CHECK(contains(fake.await_end(wire::End::membership), "cannot reach rank 1"));
    });
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
    LogQueue lines(diary.log);
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

TEST_CASE("nobody without a rank may announce a long message, or send a long address") {
    Diary diary;
    RankZero rank0(3, diary);
    FakeRank longwinded(1, rank0.port());
    longwinded.join(3);
    longwinded.await(wire::Type::status);
    std::string header(wire::kHeaderBytes, '\0');
    wire::encode({wire::Type::notice, 0, 0, wire::kGuestLimit + 1},
                 std::as_writable_bytes(std::span(header)).first<wire::kHeaderBytes>());
    longwinded.send(header);
    CHECK_THROWS_AS(longwinded.await(wire::Type::welcome), std::system_error);
    FakeRank another(1, rank0.port());
    another.join(3, std::string(256, 'x'));
    CHECK_THROWS_AS(another.await(wire::Type::status), std::system_error);
    std::thread rank1([&] { sum_once(rank_options(1, 3, rank0.port()), diary.log); });
    sum_once(rank_options(2, 3, rank0.port()), diary.log);
    rank1.join();
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
