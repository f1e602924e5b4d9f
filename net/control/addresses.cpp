#include "net/control/addresses.h"

#include <ifaddrs.h>

#include <cstring>
#include <memory>

#include "net/control/join_options.h"
#include "src/base/text.h"

namespace convoy {

static asio::ip::address without_mapping(const asio::ip::address& address) {
    if (!address.is_v6() || !address.to_v6().is_v4_mapped()) return address;
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
}

std::string address_text(const tcp::endpoint& endpoint) {
    const asio::ip::address address = without_mapping(endpoint.address());
    return address.is_v6() ? cat("[", address.to_string(), "]:", endpoint.port())
                           : cat(address.to_string(), ":", endpoint.port());
}

std::pair<std::string, uint16_t> split_address(const std::string& text, const std::string& what) {
    const auto refuse = [&](const char* why) {
        fail(what, " ", text, " ", why, "; it takes HOST:PORT, PORT from 1 to 65535");
    };
    std::string host = text, port;
    const size_t colon = text.rfind(':'), bracket = text.rfind(']');
    const bool bare_v6 = !text.starts_with("[") && text.find(':') != colon;
    if (colon != std::string::npos && !bare_v6 &&
        (bracket == std::string::npos || colon > bracket)) {
        host = text.substr(0, colon);
        port = text.substr(colon + 1);
        if (port.empty()) refuse("has no port behind the colon");
    }
    if (host.starts_with("[") != host.ends_with("]")) refuse("has a bracket without its partner");
    if (host.starts_with("[")) host = host.substr(1, host.size() - 2);
    if (host.empty()) refuse("names no host");
    const uint16_t number = to_number<uint16_t>(port).value_or(0);
    if (!port.empty() && number == 0) refuse("has no valid port");
    return {host, number};
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

// A peer on the coordinator's machine may know only its loopback address. From another machine it
// is reached at the coordinator's address.
std::pair<std::string, uint16_t> reachable(const std::string& peer, const tcp::endpoint& first) {
    auto address = split_address(peer, "the address of a peer");
    if (means_this_machine(address.first) && !first.address().is_unspecified() &&
        !is_loopback(first.address()))
        address.first = first.address().to_string();
    return address;
}

}  // namespace convoy
