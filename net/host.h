// host.h — what a machine knows of itself: its name for the others, and its own addresses.
#pragma once

#include <string>
#include <vector>

#include "net/connection.h"

namespace convoy {

// The same for two processes that share a kernel and a network namespace, so that loopback
// connects them: "nodeA-1f3c9a02". Never needed for reaching anybody.
std::string host_id();

// The addresses of this machine that --iface means: those of the interface of that name, that very
// address, or those within that network ("10.0.0.0/24", "fd77::/64"). Throws Error with a list of
// what there is when nothing fits. Link-local IPv6 addresses are left out where there are others.
std::vector<asio::ip::address> addresses_of(const std::string& iface);

// The interface that has this address of ours, and the one by which the routes of this machine send
// to that of another: "eth0"; "" where that cannot be told.
std::string interface_with(const asio::ip::address& own);
std::string interface_towards(const asio::ip::address& other);

bool is_loopback(const asio::ip::address& address);  // of either family, or IPv4 inside IPv6
// Whether the user wrote an address that means this machine alone: "localhost", 127.0.0.1, ::1.
bool means_this_machine(const std::string& host);

}  // namespace convoy
