// exchange.h — small JSON values between the ranks. Collective: both block until all have called.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "net/communicator.h"
#include "src/job/offer.h"

namespace convoy {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(JobModel, text, classes, fresh)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(JobData, train, val, description)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Offer, settings, model, data, bucket, speed)

// Returns rank 0's value.
inline nlohmann::json broadcast_json(Communicator& communicator, const nlohmann::json& mine) {
    return nlohmann::json::parse(broadcast_text(communicator, mine.dump()));
}
// Returns every rank's value, by rank.
inline std::vector<nlohmann::json> gather_json(Communicator& communicator,
                                               const nlohmann::json& mine) {
    std::vector<nlohmann::json> all;
    for (const std::string& text : gather_lists(communicator, mine.dump()))
        all.push_back(nlohmann::json::parse(text));
    return all;
}

}  // namespace convoy
