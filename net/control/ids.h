// ids.h — ids of a host, of a machine, and of what is unique.
#pragma once

#include <cstdint>
#include <string>

namespace convoy {

// "nodeA-1f3c9a02": the same for two processes that share a kernel and a network namespace, so that
// loopback connects them. Never used as an address.
std::string host_id();
// Equal for two ranks on one kernel, in any containers: such ranks share processors.
std::string machine_id();
// Tells coordinators, jobs and processes apart; never 0. Training does not depend on it.
uint64_t fresh_id();

}  // namespace convoy
