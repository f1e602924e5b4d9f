// test_fetch.cpp — bytes that one rank reads from another, and what may go wrong meanwhile.
#include "net/fetch.h"

#include <numeric>

#include "tests/fake_rank.h"
#include "tests/net_support.h"

using namespace convoy;
using Bytes = std::vector<std::byte>;

namespace {

// Byte i of a rank's file.
std::byte byte_of(int rank, uint32_t file, uint64_t i) {
    return std::byte(i * 7 + uint64_t(rank) * 31 + file * 101 + (i >> 9));
}

// Serves files of 10 MB, numbers 0 to 3.
ServeBytes serve(int rank) {
    return [rank](uint32_t file, uint64_t offset, std::span<std::byte> bytes) {
        if (file > 3) fail("no file ", file);
        if (offset > 10 << 20 || bytes.size() > (10 << 20) - offset) fail("file ", file, " ends");
        for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = byte_of(rank, file, offset + i);
    };
}

bool is_right(const Bytes& bytes, int rank, uint32_t file, uint64_t offset) {
    for (size_t i = 0; i < bytes.size(); ++i)
        if (bytes[i] != byte_of(rank, file, offset + i)) return false;
    return true;
}

}  // namespace

TEST_CASE("fetch: every rank reads from every other while sums go round the ring") {
    run_ranks(
        3, [](JoinOptions&) {},
        [](Job& job) {
            Communicator& ring = *job.communicator;
            const int me = ring.rank();
            Fetcher& fetcher = ring.open_fetcher(serve(me));
            ring.barrier();
            struct Piece {
                int rank;
                uint32_t file;
                uint64_t offset;
                Bytes bytes;
                std::future<void> done;
            };
            std::vector<Piece> pieces;
            pieces.reserve(200);
            for (uint32_t i = 0; i < 100; ++i)
                for (int rank : {(me + 1) % 3, (me + 2) % 3}) {
                    const size_t size = i == 50 ? Fetcher::kMostBytes : i * 97;
                    pieces.push_back({rank, i % 4, i * 1000, Bytes(size), {}});
                    Piece& piece = pieces.back();
                    piece.done = fetcher.fetch(rank, piece.file, piece.offset, piece.bytes);
                }
            std::vector<float> ones(1 << 16, 1);
            for (int i = 0; i < 5; ++i) ring.allreduce_sum(ones).get();
            CHECK(ones[7] == 243);
            for (Piece& piece : pieces) {
                piece.done.get();
                CHECK(is_right(piece.bytes, piece.rank, piece.file, piece.offset));
            }
        });
}

TEST_CASE("fetch: what a rank refuses is an error of that request alone") {
    run_ranks(
        2, [](JoinOptions&) {},
        [](Job& job) {
            Fetcher& fetcher = job.communicator->open_fetcher(serve(job.communicator->rank()));
            job.communicator->barrier();
            if (job.communicator->rank() == 1) return;
            Bytes bytes(100);
            const auto ask = [&](uint32_t file, uint64_t offset) {
                fetcher.fetch(1, file, offset, bytes).get();
            };
            CHECK_THROWS_WITH_AS(ask(9, 0), doctest::Contains("): no file 9"), Error);
            CHECK_THROWS_WITH_AS(ask(1, (10 << 20) - 99), doctest::Contains("file 1 ends"), Error);
            CHECK_THROWS_WITH_AS(ask(1, uint64_t(1) << 63), doctest::Contains("ends"), Error);
            CHECK_THROWS_WITH_AS(ask(1, UINT64_MAX), doctest::Contains("rank 1 (127.0.0.1"), Error);
            ask(2, 5);
            CHECK(is_right(bytes, 1, 2, 5));
        });
}

TEST_CASE("fetch: a rank that dies while it serves is named, in every request that waits") {
    std::promise<void> asked;
    std::once_flag once;
    const auto run = [&] {
        run_ranks(
            2, [](JoinOptions&) {},
            [&](Job& job) {
                const int me = job.communicator->rank();
                Fetcher& fetcher = job.communicator->open_fetcher(
                    [&, me](uint32_t file, uint64_t offset, std::span<std::byte> bytes) {
                        std::call_once(once, [&] { asked.set_value(); });
                        serve(me)(file, offset, bytes);
                    });
                job.communicator->barrier();
                if (me == 1) {
                    asked.get_future().get();
                    fail("rank 1 has had enough");
                }
                Bytes bytes(Fetcher::kMostBytes);
                std::vector<std::future<void>> all;
                for (int i = 0; i < 500; ++i) all.push_back(fetcher.fetch(1, 0, 0, bytes));
                CHECK_THROWS_WITH_AS(all.back().get(), doctest::Contains("rank 1 (127.0.0.1"),
                                     RankLost);
                CHECK_THROWS_AS(fetcher.fetch(1, 0, 0, bytes).get(), RankLost);
            });
    };
    CHECK_THROWS_WITH_AS(run(), doctest::Contains("rank 1"), Error);
}

TEST_CASE(
    "groups: some of the ranks sum, gather and wait on a ring of their own, beside that of all") {
    for (const int groups : {1, 2, 3})
        run_ranks(
            6, [](JoinOptions&) {},
            [&](Job& job) {
                Communicator& all = *job.communicator;
                all.open_fetcher(serve(all.rank()));
                all.barrier();
                std::vector<int> ranks;
                float want = 0;
                for (int r = all.rank() % groups; r < 6; r += groups)
                    ranks.push_back(r), want += float(r);
                const auto group = all.open_group(ranks);
                REQUIRE(group->world() == 6 / groups);
                CHECK(ranks[size_t(group->rank())] == all.rank());
                std::vector<float> large(1 << 18, float(all.rank())), small(9, 1);
                auto first = group->allreduce_sum(large), second = all.allreduce_sum(small);
                first.get(), second.get();
                CHECK(std::ranges::count(large, want) == std::ssize(large));
                CHECK(std::ranges::count(small, 6) == 9);
                std::vector<float> numbers(ranks.size(), -1);
                std::vector<std::span<float>> blocks;
                for (float& number : numbers) blocks.emplace_back(&number, 1);
                numbers[size_t(group->rank())] = float(all.rank());
                group->gather(blocks, false).get();
                CHECK(std::ranges::equal(numbers, ranks));
                const auto texts = allgather_text(*group, std::to_string(all.rank()));
                for (size_t i = 0; i < ranks.size(); ++i)
                    CHECK(texts[i] == std::to_string(ranks[i]));
                CHECK(broadcast_text(*group, texts[0]) == std::to_string(ranks[0]));
                group->barrier();
            });
}

TEST_CASE("groups: a rank that fails is named in the group of others as well") {
    const auto run = [] {
        run_ranks(
            4, [](JoinOptions&) {},
            [](Job& job) {
                Communicator& all = *job.communicator;
                all.open_fetcher(serve(all.rank()));
                all.barrier();
                const int first = all.rank() % 2;
                const auto group = all.open_group({first, first + 2});
                std::vector<float> values(1 << 16, 1);
                if (all.rank() == 3) {
                    all.abort("it has had enough");
                    fail("it has had enough");
                }
                for (;;) group->allreduce_sum(values).get();
            });
    };
    CHECK_THROWS_WITH_AS(run(), doctest::Contains("rank 3 (127.0.0.1"), Error);
}

TEST_CASE("fetch: hostile requests are refused or end the connection, and the job goes on") {
    Port port;
    Diary diary;
    std::promise<void> ready, enough;
    std::thread real([&] {
        JoinOptions options;
        options.host = "127.0.0.1", options.rank = 0, options.world = 2;
        options.heartbeat = std::chrono::milliseconds(200);
        options.listening = [&](uint16_t p) { port.set(p); };
        Job job = join(options, diary.log());
        job.communicator->open_fetcher(serve(0));
        ready.set_value();
        enough.get_future().get();
    });
    FakeRank fake(1, port.get());
    fake.stand(2);
    ready.get_future().get();
    const wire::Welcome& me = fake.welcome();
    const std::string address = me.peers[0].address;

    // The type of the first answer to `bytes` on a fresh edge, or what ended the connection.
    const auto answer = [&](const std::string& bytes, uint64_t job) -> std::string {
        asio::io_context io;
        tcp::socket socket(io);
        const auto [host, number] = split_address(address, "peer");
        socket.connect({asio::ip::make_address(host), number});
        asio::write(socket,
                    asio::buffer(wire::encode(wire::Edge{job, 1, 0, me.generation}) + bytes));
        std::string text;
        try {
            for (int i = 0; i < 2; ++i) {
                std::byte head[wire::kHeaderBytes];
                asio::read(socket, asio::buffer(head));
                const wire::Header header = wire::decode(head, wire::kControlLimit);
                std::string body(header.length, ' ');
                asio::read(socket, asio::buffer(body));
                if (i == 1 && header.type == wire::Type::refuse)
                    return wire::decode<wire::Refuse>(body).why;
                text = wire::name(header.type);
            }
        } catch (const std::system_error&) {
            return text + " and no more";
        }
        return text;
    };
    const auto header = [](wire::Type type, uint64_t length) {
        std::string bytes(wire::kHeaderBytes, ' ');
        wire::encode({type, 0, 0, length},
                     std::as_writable_bytes(std::span(bytes)).first<wire::kHeaderBytes>());
        return bytes;
    };
    CHECK(answer(wire::encode(wire::Request{1, 100, 0}), me.job) == "BYTES");
    CHECK(answer(wire::encode(wire::Request{1, UINT32_MAX, 0}), me.job) ==
          "asked for 4294967295 bytes at once");
    CHECK(answer(wire::encode(wire::Request{1, 100, UINT64_MAX - 50}), me.job) == "file 1 ends");
    CHECK(answer(wire::encode(wire::Request{UINT32_MAX, 1, 0}), me.job) == "no file 4294967295");
    CHECK(answer(header(wire::Type::request, uint64_t(1) << 63), me.job) == "EDGE and no more");
    CHECK(answer(header(wire::Type::request, 5) + "12345", me.job) == "EDGE and no more");
    CHECK(answer(header(wire::Type::sum, 0), me.job) == "EDGE and no more");
    CHECK(answer(std::string(1000, 'x'), me.job) == "EDGE and no more");
    CHECK(answer("", me.job + 1) == " and no more");
    CHECK(answer(wire::encode(wire::Request{1, 100, 0}), me.job) == "BYTES");
    enough.set_value();
    fake.die();
    real.join();
    CHECK(diary.text().find("no longer serves rank 1 (") != std::string::npos);
}

TEST_CASE("fetch: strangers that are refused fill no log") {
    Diary diary;
    Port port;
    std::thread other([&] {
        FakeRank rank(1, port.get());
        rank.stand(2);
        for (int i = 0; i < 100; ++i) {
            asio::io_context io;
            tcp::socket stranger(io);
            stranger.connect({asio::ip::make_address("127.0.0.1"), port.get()});
            FakeRank::say(stranger, wire::encode(wire::Edge{7, 1, 0, 1}));
            CHECK_THROWS_AS(FakeRank::hear(stranger), std::system_error);
        }
        rank.die();
    });
    JoinOptions options;
    options.host = "127.0.0.1";
    options.rank = 0;
    options.world = 2;
    options.join_timeout = std::chrono::seconds(20);
    options.listening = [&](uint16_t p) { port.set(p); };
    Job job = join(options, diary.log());
    job.communicator->open_fetcher(serve(0));
    other.join();
    size_t lines = 0;
    for (size_t at = 0; (at = diary.text().find("refused", at)) != std::string::npos; ++at) ++lines;
    CHECK(lines == 10);
}
