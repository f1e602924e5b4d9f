#include "src/session/rank_json.h"

#include "src/base/check.h"
#include "src/base/random.h"

namespace convoy {
using nlohmann::json;

constexpr size_t kMostBucket = size_t(1) << 40;  // bytes

std::string sealed(const std::string& text) {
    return fmt::format("{:016x}{}", hash_bytes(text), text);
}

json unsealed(const std::string& text, int rank) {
    const std::string value = text.substr(std::min<size_t>(16, text.size()));
    if (sealed(value) == text) return json::parse(value);
    fail("data from rank ", rank,
         " were damaged on their way: check network cards and cables; a token protects all "
         "connections (--token-file FILE, which `trainer token` makes)");
}

std::string offer_text(const Offer& offer) { return json(offer).dump(); }

Offer parse_offer(const std::string& text) {
    try {
        const json in = json::parse(text);
        const json& bucket = in.at("bucket");
        if (!bucket.is_number_unsigned() || bucket < 1 || bucket > kMostBucket)
            fail("a bucket of ", bucket.dump(), " bytes");
        const Offer offer = in;
        if (!(offer.speed >= 0)) fail("a speed of ", offer.speed);
        return offer;
    } catch (const std::exception& error) {
        fail("the job's offer to newcomers cannot be read: ", error.what());
    }
}

}  // namespace convoy
