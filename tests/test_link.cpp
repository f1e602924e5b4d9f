// An edge is one stream of bytes each way.
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "net/connection.h"
#include "tests/net_support.h"
#include "tests/relay.h"

namespace convoy {

using std::chrono::milliseconds;

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
