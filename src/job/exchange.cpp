#include "src/job/exchange.h"

#include <nlohmann/json.hpp>

namespace convoy {

using nlohmann::json;

json broadcast_json(Communicator& communicator, const json& mine) {
    return json::parse(broadcast_text(communicator, mine.dump()));
}

std::vector<json> gather_json(Communicator& communicator, const json& mine) {
    std::vector<json> all;
    for (const std::string& text : allgather_text(communicator, mine.dump()))
        all.push_back(json::parse(text));
    return all;
}

}  // namespace convoy
