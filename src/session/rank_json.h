// rank_json.h — JSON between the ranks of a job: small values that all of them exchange, and what a
// rank tells a newcomer. An Offer travels in an OFFER (net/control/wire.h). Without a token a
// stranger may have made it.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "net/ring/communicator.h"

namespace convoy {

struct JobModel {
    std::string text;
    std::vector<std::string> classes;
    bool fresh = true;  // every rank can draw the start weights: no --init, --resume or whitening
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(JobModel, text, classes, fresh)

// The images that a rank sees: their fingerprints, and a description.
struct JobData {
    std::string train, val, description;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(JobData, train, val, description)

// The data on which the ranks have agreed.
struct Offer {
    std::map<std::string, std::string> settings;  // job_settings()
    JobModel model;
    JobData data;
    size_t bucket = 0;  // bytes
    double speed = 0;   // Shares::speed
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Offer, settings, model, data, bucket, speed)
std::string offer_text(const Offer& offer);
Offer parse_offer(const std::string& text);  // throws Error

// JSON with a checksum, and the value in such a text of rank `rank`. Throws Error if it is damaged.
std::string sealed(const std::string& text);
nlohmann::json unsealed(const std::string& text, int rank);
// Returns rank 0's value. Collective, as gather_json(): blocks until all have called.
inline nlohmann::json broadcast_json(Communicator& communicator, const nlohmann::json& mine) {
    return unsealed(broadcast_text(communicator, sealed(mine.dump())), 0);
}
// Returns every rank's value, by rank.
inline std::vector<nlohmann::json> gather_json(Communicator& communicator,
                                               const nlohmann::json& mine) {
    std::vector<nlohmann::json> all;
    for (const std::string& text : gather_lists(communicator, sealed(mine.dump())))
        all.push_back(unsealed(text, int(all.size())));
    return all;
}

}  // namespace convoy
