// An edge is one stream of bytes each way.
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>

#include "net/connection.h"
#include "net/link.h"
#include "tests/net_support.h"
#include "tests/relay.h"

namespace convoy {

using std::chrono::milliseconds;

namespace {

struct Pair {
    Link left, right;
};

Pair linked() {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    return {Link(ends[0], "left"), Link(ends[1], "right")};
}

std::vector<std::byte> noise(size_t n) {
    std::mt19937 random(7);
    std::vector<std::byte> bytes(n);
    for (auto& byte : bytes) byte = std::byte(random());
    return bytes;
}

}  // namespace

TEST_CASE("a link carries one stream, in chunks of any size, both ways at once") {
    const std::vector<std::byte> sent = noise(3'000'001);
    for (const size_t limit : {size_t(0), size_t(10'007)}) {
        CAPTURE(limit);
        Pair pair = linked();
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
            if (out < sent.size()) out += pair.left.send_some(std::span(sent).subspan(out), true);
            in += pair.left.receive_some(std::span(back).subspan(in));
            if (in < back.size()) wait_for(pair.left, out < sent.size(), pair.left, true);
        }
        other.join();
        CHECK(there == sent);
        CHECK(back == sent);
    }
}

TEST_CASE("a link that is shut ends both ways, here and at the other end") {
    Pair pair = linked();
    pair.left.shut();
    std::byte one;
    CHECK_THROWS_AS(pair.right.receive_all({&one, 1}), LinkLost);
    CHECK_THROWS_AS(pair.left.send_all(noise(16)), LinkLost);
    CHECK(pair.right.has_ended());
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

TEST_CASE("sums over a link that delays are right") {
    constexpr size_t kElems = 1'000'003;
    std::atomic<uint16_t> port0{0};
    Relay relay([&] { return port0.load(); }, {}, milliseconds(2));
    run_ranks(
        2,
        [&](JoinOptions& options) {
            options.access.open = true;  // --advertise listens everywhere
            if (options.rank > 0) return;
            options.advertise = cat("127.0.0.1:", relay.port());
            options.listening = [&, tell = options.listening](uint16_t p) { port0 = p, tell(p); };
        },
        [&](Job& job) {
            std::vector<float> data(kElems);
            for (size_t i = 0; i < kElems; ++i)
                data[i] = float((size_t(job.communicator->rank()) + i) % 17);
            job.communicator->allreduce_sum(data).get();
            size_t wrong = 0;
            for (size_t i = 0; i < kElems; ++i) wrong += data[i] != float(i % 17 + (i + 1) % 17);
            CHECK(wrong == 0);
        });
}

}  // namespace convoy
