// exchange.h — small JSON values between the ranks. Collective: both block until all have called.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "net/communicator.h"

namespace convoy {

// Returns rank 0's value.
nlohmann::json broadcast_json(Communicator& communicator, const nlohmann::json& mine);
// Returns every rank's value, by rank.
std::vector<nlohmann::json> gather_json(Communicator& communicator, const nlohmann::json& mine);

}  // namespace convoy
