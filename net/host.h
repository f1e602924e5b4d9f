// host.h — this machine: its id, its addresses and its network interfaces.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "net/connection.h"

namespace convoy {

// "nodeA-1f3c9a02": the same for two processes that share a kernel and a network namespace, so that
// loopback connects them. Never used as an address.
std::string host_id();

// Every address of this machine, loopback included, with the name of its interface.
std::vector<std::pair<std::string, asio::ip::address>> interfaces();

// The interface that has this address of ours, and the one through which packets to the address of
// another machine leave: "eth0"; "" if unknown.
std::string interface_with(const asio::ip::address& own);
std::string interface_towards(const asio::ip::address& other);

bool is_loopback(const asio::ip::address& address);  // of either family, or IPv4 inside IPv6
// Whether `host` means this machine alone: "localhost", 127.0.0.1, ::1.
bool means_this_machine(const std::string& host);

}  // namespace convoy
