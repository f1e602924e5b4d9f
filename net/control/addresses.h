// addresses.h — host addresses: their texts, those of this machine, and the one of a peer.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "net/control/asio.h"

namespace convoy {

// "10.0.0.7:29401", "[fd00::2]:29401"; an IPv4 address inside IPv6 is written as IPv4.
std::string address_text(const tcp::endpoint& endpoint);
// Every address of this machine, loopback included, with the name of its interface.
std::vector<std::pair<std::string, asio::ip::address>> interfaces();

// The interface that has this address of ours, and the one through which packets to the address of
// another machine leave: "eth0"; "" if unknown.
std::string interface_with(const asio::ip::address& own);
std::string interface_towards(const asio::ip::address& other);

bool is_loopback(const asio::ip::address& address);  // of either family, or IPv4 inside IPv6
// Whether `host` means this machine alone: "localhost", 127.0.0.1, ::1.
bool means_this_machine(const std::string& host);

// Host and port of a peer that advertises `peer`. `first`: the address of the job's first
// coordinator; unspecified: this machine. Throws Error.
std::pair<std::string, uint16_t> reachable(const std::string& peer, const tcp::endpoint& first);

}  // namespace convoy
