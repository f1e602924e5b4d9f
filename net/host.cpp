#include "net/host.h"

#include <ifaddrs.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <memory>

#include "src/base/random.h"

namespace convoy {

// An id of the running kernel. A machine id would not do, because clones of a disk share it.
static std::string boot_id() {
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    return boot;
}

std::string machine_id() { return boot_id().empty() ? host_id() : boot_id(); }

std::string host_id() {
    // The namespace link tells containers apart. Where neither can be read the name must suffice.
    char name[256] = "host", space[64] = "";
    if (gethostname(name, sizeof name - 1) != 0) name[0] = 0;
    if (readlink("/proc/self/ns/net", space, sizeof space - 1) < 0) space[0] = 0;
    return fmt::format("{}-{:08x}", name, uint32_t(hash_bytes(boot_id() + space)));
}

std::vector<std::pair<std::string, asio::ip::address>> interfaces() {
    ifaddrs* list = nullptr;
    if (getifaddrs(&list) != 0) fail("the network interfaces cannot be listed: ", strerror(errno));
    const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
    std::vector<std::pair<std::string, asio::ip::address>> found;
    for (const ifaddrs* i = list; i; i = i->ifa_next) {
        if (!i->ifa_addr) continue;
        tcp::endpoint endpoint;
        const int family = i->ifa_addr->sa_family;
        if (family != AF_INET && family != AF_INET6) continue;
        std::memcpy(endpoint.data(), i->ifa_addr,
                    family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
        found.emplace_back(i->ifa_name, endpoint.address());
    }
    return found;
}

std::string interface_with(const asio::ip::address& own) {
    for (const auto& [name, address] : interfaces())
        if (address == own) return name;
    return "";
}

// Connecting a datagram socket sends nothing, but it chooses a route and so one of our addresses.
std::string interface_towards(const asio::ip::address& other) {
    asio::io_context io;
    asio::ip::udp::socket socket(io);
    std::error_code error;
    const asio::ip::udp::endpoint endpoint(other, 9);
    socket.open(endpoint.protocol(), error);
    if (!error) socket.connect(endpoint, error);
    if (error) return "";
    const asio::ip::address own = socket.local_endpoint(error).address();
    return error ? "" : interface_with(own);
}

bool is_loopback(const asio::ip::address& address) {
    return without_mapping(address).is_loopback();
}

bool means_this_machine(const std::string& host) {
    std::error_code not_an_address;
    const auto address = asio::ip::make_address(host, not_an_address);
    return host == "localhost" || (!not_an_address && is_loopback(address));
}

}  // namespace convoy
