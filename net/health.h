// health.h — asks the rank that runs on this machine how it is (`trainer health`).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "net/connection.h"

namespace convoy {

struct HealthReport {
    bool healthy = false;
    bool none_is_there = false;  // nobody listens at the port, or something that is no trainer
    std::string text;            // one sentence
};

// What a rank says of itself at its own port.
struct PeerHealth {
    wire::Health health = {};  // no process: it gave no answer
    std::string why = {};      // the reason for no answer, if known
    bool refused = false;      // nobody listens at any of its addresses
};
// Asks it, for about a second. `first`: see reachable().
asio::awaitable<PeerHealth> ask_health(wire::Member member, tcp::endpoint first, TlsContext tls);
// Why the process of `member` is dead according to this answer; "": it lives, or may live.
std::string why_gone(const wire::Member& member, const PeerHealth& answer);

// Asks the rank or coordinator that listens at `port` of any address of this machine. Blocks, for
// at most `patience`.
HealthReport ask_health(uint16_t port, std::chrono::milliseconds patience,
                        const std::string& token = "");

// Whether a rank or coordinator answers at an address or name. Blocks, for at most `patience`.
bool answers(const std::string& address, uint16_t port, std::chrono::milliseconds patience,
             const std::string& token);

}  // namespace convoy
