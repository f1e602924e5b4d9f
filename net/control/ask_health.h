// ask_health.h — asks the rank that runs on this machine how it is (`trainer health`).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "net/control/connection.h"
#include "net/control/coordinator.h"

namespace convoy {

struct HealthReport {
    bool healthy = false;
    bool none_is_there = false;  // nobody listens at the port, or something that is no trainer
    std::string text;            // one sentence
};

// Whether the process of `member` lives: asks at its port, for about a second. `first`: see
// reachable().
asio::awaitable<event::ProbeResult> probe_process(wire::Member member, tcp::endpoint first,
                                                  TlsContext tls);

// Asks the rank or coordinator that listens at `port` of any address of this machine. Blocks, for
// at most `patience`.
HealthReport ask_health(uint16_t port, std::chrono::milliseconds patience,
                        const std::string& token = "");

// Whether a rank or coordinator answers at an address or name. Blocks, for at most `patience`.
bool answers(const std::string& address, uint16_t port, std::chrono::milliseconds patience,
             const std::string& token);

}  // namespace convoy
