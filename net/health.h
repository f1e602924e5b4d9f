// health.h — asks the rank that runs on this machine how it is (`trainer health`).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace convoy {

struct HealthReport {
    bool healthy = false;
    bool none_is_there = false;  // nobody listens at the port, or something that is no trainer
    std::string text;            // one sentence
};

// Asks the rank or coordinator that listens at `port` of any address of this machine. Blocks, for
// at most `patience`.
HealthReport ask_health(uint16_t port, std::chrono::milliseconds patience);

}  // namespace convoy
