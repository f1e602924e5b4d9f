// An edge of several connections is one stream of bytes each way.
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>

#include "net/link.h"
#include "net/rendezvous.h"
#include "net/tls.h"
#include "tests/net_support.h"
#include "tests/relay.h"

namespace convoy {

using std::chrono::milliseconds;

namespace {

struct Pair {
    Link left, right;
};

Pair linked(size_t flows) {
    Pair pair;
    for (size_t flow = 0; flow < flows; ++flow) {
        int ends[2];
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
        if (flow == 0)
            pair.left = Link(ends[0], "left"), pair.right = Link(ends[1], "right");
        else
            pair.left.set_flow(flow, ends[0], nullptr), pair.right.set_flow(flow, ends[1], nullptr);
    }
    return pair;
}

std::vector<std::byte> noise(size_t n) {
    std::mt19937 random(7);
    std::vector<std::byte> bytes(n);
    for (auto& byte : bytes) byte = std::byte(random());
    return bytes;
}

}  // namespace

TEST_CASE("a link of 1 to 5 connections carries one stream, in any chunks, both ways at once") {
    const std::vector<std::byte> sent = noise(3'000'001);
    for (const size_t flows : {1, 2, 3, 5})
        for (const size_t limit : {size_t(0), size_t(10'007)}) {
            CAPTURE(flows);
            Pair pair = linked(flows);
            CHECK(pair.left.flows() == flows);
            if (limit)
                for (Link* link : {&pair.left, &pair.right})
                    link->set_limit([limit](size_t n) { return std::min(n, limit); });
            std::vector<std::byte> there(sent.size()), back(sent.size());
            std::thread other([&] {  // takes it in odd chunks and returns each
                std::mt19937 random(3);
                for (size_t at = 0; at < there.size();) {
                    const size_t n = std::min<size_t>(1 + random() % 300'000, there.size() - at);
                    pair.right.receive_all(std::span(there).subspan(at, n));
                    pair.right.send_all(std::span(there).subspan(at, n));
                    at += n;
                }
            });
            for (size_t out = 0, in = 0; in < back.size();) {  // as the ring does
                if (out < sent.size())
                    out += pair.left.send_some(std::span(sent).subspan(out), true);
                in += pair.left.receive_some(std::span(back).subspan(in));
                if (in < back.size()) wait_for(pair.left, out < sent.size(), pair.left, true);
            }
            other.join();
            CHECK(there == sent);
            CHECK(back == sent);
        }
}

TEST_CASE("the bytes of a link are spread over its connections, a stripe each in turn") {
    Pair pair = linked(2);
    const std::vector<std::byte> sent = noise(600 << 10);
    std::thread sender([&] { pair.left.send_all(sent); });
    const int first = pair.right.socket_in();
    std::vector<std::byte> got(256 << 10);
    pair.right.receive_all(got);
    const int second = pair.right.socket_in();
    CHECK(first != second);
    pair.right.receive_all(got);
    CHECK(pair.right.socket_in() == first);
    got.resize(88 << 10);
    pair.right.receive_all(got);
    sender.join();
    CHECK(pair.right.socket_in() == first);
    CHECK(std::equal(got.begin(), got.end(), sent.begin() + (512 << 10)));
}

TEST_CASE("a connection that breaks ends the link, and shutting it ends them all") {
    Pair pair = linked(3);
    ::shutdown(pair.left.socket_out(), SHUT_RDWR);
    CHECK_THROWS_AS(pair.left.send_all(noise(16)), LinkLost);
    pair = linked(3);
    pair.left.shut();
    std::byte one;
    for (int flow = 0; flow < 3; ++flow)
        CHECK_THROWS_AS(pair.right.receive_all({&one, 1}), LinkLost);
    CHECK_THROWS_AS(pair.left.send_all(noise(16)), LinkLost);
}

TEST_CASE("within a machine TCP is not paced; to another address it is as the system says") {
    asio::io_context io;
    const auto control = [](tcp::socket& socket) {
        char name[32] = {};
        socklen_t size = sizeof name;
        REQUIRE(getsockopt(socket.native_handle(), IPPROTO_TCP, TCP_CONGESTION, name, &size) == 0);
        return std::string(name);
    };
    for (const char* from : {"127.0.0.1", "127.0.0.2"}) {
        CAPTURE(from);
        tcp::acceptor acceptor(io, {asio::ip::make_address("127.0.0.1"), 0});
        tcp::socket socket(io, {asio::ip::make_address(from), 0});
        const std::string before = control(socket);
        socket.connect(acceptor.local_endpoint());
        tcp::socket other = acceptor.accept();
        set_options(socket), set_options(other);
        const std::string expected = from == std::string("127.0.0.1") ? "reno" : before;
        CHECK(control(socket) == expected);
        CHECK(control(other) == expected);
    }
}

TEST_CASE("--flows: edges have as many connections as rank 0 says, with and without a token") {
    for (const std::string& token : {std::string(), make_token()}) {
        CAPTURE(token.empty());
        const int world = 4;
        std::vector<std::vector<float>> sums(world, std::vector<float>(1'000'003));
        run_ranks(
            world,
            [&](JoinOptions& options) {
                options.flows = options.rank == 0 ? 3 : 999;
                options.access.token = token;
            },
            [&](Job& job) {
                const int rank = job.communicator->rank();
                auto& data = sums[size_t(rank)];
                for (size_t i = 0; i < data.size(); ++i) data[i] = float((size_t(rank) + i) % 17);
                job.communicator->allreduce_sum(data).get();
                float small = float(rank);
                job.communicator->allreduce_sum({&small, 1}).get();
                CHECK(small == 6);
                CHECK(job.communicator->measure_edges().size() == 8);
            });
        for (size_t i = 0; i < sums[0].size(); ++i) {
            float want = 0;
            for (int rank = 0; rank < world; ++rank) want += float((size_t(rank) + i) % 17);
            if (sums[0][i] != want || sums[3][i] != want) FAIL(i);
        }
        CHECK(sums[1] == sums[0]);
        CHECK(sums[2] == sums[0]);
    }
}

TEST_CASE("--flows auto: one connection, and one more for each 24 ms there and back, up to 8") {
    for (const auto& [ms, flows] :
         {std::pair(0.0, 1u), {0.1, 1}, {24, 1}, {25, 2}, {48, 2}, {100, 5}, {180, 8}, {900, 8}})
        CHECK(flows_for(ms / 1000) == flows);
}

// Two ranks, whose only edge passes through a relay that delays by `delay` each way, sum `elems`
// numbers. Returns the bytes of each connection.
static std::vector<size_t> sum_over_delay(milliseconds delay, uint32_t flows, size_t elems,
                                          double& seconds) {
    std::atomic<uint16_t> port0{0};
    Relay relay([&] { return port0.load(); }, {}, delay);
    run_ranks(
        2,
        [&](JoinOptions& options) {
            options.flows = flows;
            options.access.open = true;  // --advertise listens everywhere
            if (options.rank > 0) return;
            options.advertise = cat("127.0.0.1:", relay.port());
            options.listening = [&, tell = options.listening](uint16_t p) { port0 = p, tell(p); };
        },
        [&](Job& job) {
            std::vector<float> data(elems);
            for (size_t i = 0; i < elems; ++i)
                data[i] = float((size_t(job.communicator->rank()) + i) % 17);
            job.communicator->barrier();
            const auto begin = Clock::now();
            job.communicator->allreduce_sum(data).get();
            if (job.communicator->rank() == 0) seconds = seconds_since(begin);
            size_t wrong = 0;
            for (size_t i = 0; i < elems; ++i) wrong += data[i] != float(i % 17 + (i + 1) % 17);
            CHECK(wrong == 0);
        });
    return relay.connections();
}

TEST_CASE("sums over a way that delays are right with 1 and 4 connections, and use them all") {
    double seconds;
    for (const size_t flows : {1, 4}) {
        const auto bytes = sum_over_delay(milliseconds(2), uint32_t(flows), 1'000'003, seconds);
        REQUIRE(bytes.size() == flows);
        for (const size_t n : bytes) CHECK(n > 8'000'024 / flows * 3 / 4);
    }
}

// run_tests -ns -s -tc='measured: *'
TEST_CASE("measured: 8 MB over a way of 20 ms, 64 KB a connection" * doctest::skip()) {
    for (const uint32_t flows : {1, 2, 4, 8}) {
        double seconds = 0;
        sum_over_delay(milliseconds(20), flows, 2'000'000, seconds);
        MESSAGE(flows << " connections: " << seconds << " s");
    }
}

}  // namespace convoy
