// The sockets of links.
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "net/control/connection.h"
#include "tests/net_support.h"

namespace convoy {

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

}  // namespace convoy
