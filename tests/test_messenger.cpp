// test_messenger.cpp — messages between two ranks, and rings of some of the ranks.

#include "net/ring/messenger.h"
#include "tests/fake_rank.h"
#include "tests/net_support.h"

using namespace convoy;
using Bytes = std::vector<std::byte>;

namespace {

std::vector<int> all_but(int rank, int world) {
    std::vector<int> others;
    for (int r = 0; r < world; ++r)
        if (r != rank) others.push_back(r);
    return others;
}

// Byte i of a message.
std::byte byte_of(int from, int channel, size_t number, size_t i) {
    return std::byte(i * 7 + size_t(from) * 31 + size_t(channel) * 101 + number + (i >> 9));
}

}  // namespace

TEST_CASE("links: messages of two channels between all ranks, in order, while sums go round") {
    for (const std::string& token : {std::string(), make_token()}) {
        CAPTURE(token.empty());
        run_ranks(
            3, [&](JoinOptions& options) { options.access.token = token; },
            [](Job& job) {
                Communicator& ring = *job.communicator;
                const int me = ring.rank();
                const auto links = ring.open_messenger(all_but(me, 3));
                constexpr size_t kMessages = 40;
                const auto size_of = [](size_t number) {
                    return number == 20 ? size_t(3 << 20) : number * 97;
                };
                std::vector<Bytes> sent, got;
                std::vector<std::future<void>> done;
                std::atomic<int> called{0};
                sent.reserve(400), got.reserve(400);
                for (size_t number = 0; number < kMessages; ++number)
                    for (const int peer : all_but(me, 3))
                        for (const int channel : {0, 1}) {
                            Bytes& out = sent.emplace_back(size_of(number));
                            for (size_t i = 0; i < out.size(); ++i)
                                out[i] = byte_of(me, channel, number, i);
                            done.push_back(links->send(peer, out, channel));
                            Bytes& in = got.emplace_back(size_of(number));
                            done.push_back(links->receive(peer, in, channel, [&] { ++called; }));
                        }
                std::vector<float> ones(1 << 16, 1);
                for (int i = 0; i < 5; ++i) ring.allreduce_sum(ones).get();
                CHECK(ones[7] == 243);
                for (std::future<void>& one : done) links->wait(one);
                size_t at = 0, wrong = 0;
                for (size_t number = 0; number < kMessages; ++number)
                    for (const int peer : all_but(me, 3))
                        for (const int channel : {0, 1}) {
                            const Bytes& in = got[at++];
                            for (size_t i = 0; i < in.size(); ++i)
                                wrong += in[i] != byte_of(peer, channel, number, i);
                        }
                CHECK(wrong == 0);
                ring.barrier();  // then the last then() has returned on all ranks, or soon does
                while (called < int(got.size())) std::this_thread::yield();
            });
    }
}

TEST_CASE("links: a rank that dies is named by a rank that waits for its message") {
    const auto run = [] {
        run_ranks(
            2, [](JoinOptions&) {},
            [](Job& job) {
                const int me = job.communicator->rank();
                const auto links = job.communicator->open_messenger({1 - me});
                Bytes bytes(100);
                if (me == 1) {
                    auto sent = links->send(0, bytes);
                    links->wait(sent);
                    job.communicator->abort("rank 1 has had enough");
                    fail("rank 1 has had enough");
                }
                auto first = links->receive(1, bytes), second = links->receive(1, bytes);
                links->wait(first);
                CHECK_FAILS(links->wait(second), "has had enough");
                auto third = links->send(1, bytes);
                CHECK_THROWS_AS(links->wait(third), Error);
            });
    };
    CHECK_FAILS(run(), "rank 1");
}

TEST_CASE("links: a message of another size than expected is an error that names its sender") {
    const auto run = [] {
        run_ranks(
            2, [](JoinOptions&) {},
            [](Job& job) {
                const int me = job.communicator->rank();
                const auto links = job.communicator->open_messenger({1 - me});
                Bytes bytes(me == 1 ? 4 : 8);
                auto message = me == 1 ? links->send(0, bytes) : links->receive(1, bytes);
                links->wait(message);
                job.communicator->barrier();
            });
    };
    CHECK_FAILS(run(), "sent a message of 4 bytes, not of 8");
}

TEST_CASE("links: those that are closed write no more, and the job goes on") {
    run_ranks(
        2, [](JoinOptions&) {},
        [](Job& job) {
            const int me = job.communicator->rank();
            std::future<void> late;
            {
                Bytes bytes(100);
                const auto links = job.communicator->open_messenger({1 - me});
                late = links->receive(1 - me, bytes);
                job.communicator->barrier();  // the other rank has its links too
            }
            CHECK_THROWS_AS(late.get(), Error);
            std::vector<float> ones(100, 1);
            job.communicator->allreduce_sum(ones).get();
            CHECK(ones[99] == 2);
        });
}

TEST_CASE(
    "groups: some of the ranks sum, gather and wait on a ring of their own, beside that of all") {
    for (const int groups : {1, 2, 3})
        run_ranks(
            6, [](JoinOptions&) {},
            [&](Job& job) {
                Communicator& all = *job.communicator;
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
                const auto texts = gather_lists(*group, std::to_string(all.rank()));
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
    CHECK_FAILS(run(), "rank 3 (127.0.0.1");
}

TEST_CASE("links: strangers that are refused fill no log") {
    Diary diary;
    Port port;
    std::thread other([&] {
        FakeRank rank(1, port.get());
        rank.stand(2);
        for (int i = 0; i < 100; ++i) {
            asio::io_context io;
            tcp::socket stranger(io);
            stranger.connect({asio::ip::make_address("127.0.0.1"), port.get()});
            FakeRank::say(stranger, wire::encode(wire::Link{7, 1, 0, 1}));
            CHECK_THROWS_AS(FakeRank::hear(stranger), std::system_error);
        }
        rank.die();
    });
    Job job = join(rank_options(0, 2, port), diary.log);
    other.join();
    CHECK(count_of(diary.text(), "refused") == 10);
}
