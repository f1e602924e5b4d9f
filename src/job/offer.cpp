#include "src/job/offer.h"

#include "src/base/check.h"
#include "src/job/exchange.h"

namespace convoy {

using nlohmann::json;

constexpr size_t kMostBucket = size_t(1) << 40;  // bytes

void to_json(json& out, const JobData& data) { out = {data.train, data.val, data.description}; }
void from_json(const json& in, JobData& data) {
    in.at(0).get_to(data.train);
    in.at(1).get_to(data.val);
    in.at(2).get_to(data.description);
}

std::string offer_text(const Offer& offer) {
    return json{{"settings", offer.settings},
                {"model", offer.model},
                {"data", offer.data},
                {"bucket", offer.bucket},
                {"speed", offer.speed}}
        .dump();
}

Offer parse_offer(const std::string& text) {
    try {
        const json in = json::parse(text);
        const json& bucket = in.at("bucket");
        if (!bucket.is_number_unsigned() || bucket < 1 || bucket > kMostBucket)
            fail("a bucket of ", bucket.dump(), " bytes");
        Offer offer{in.at("settings"), in.at("model"), in.at("data"), bucket, in.at("speed")};
        if (!(offer.speed >= 0)) fail("a speed of ", offer.speed);
        return offer;
    } catch (const std::exception& error) {
        fail("the job's offer to newcomers cannot be read: ", error.what());
    }
}

}  // namespace convoy
