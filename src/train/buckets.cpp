#include "src/train/buckets.h"

namespace convoy {

LinearTraffic linear_traffic(int inputs, int outputs, bool bias, int64_t batch, RingSize ring) {
    const double in = inputs, out = outputs;
    const auto a_float = [](int n) { return double(n - 1) / n * sizeof(float); };
    return {2 * a_float(ring.around) * (in * out + (bias ? out : 0)),
            a_float(ring.ranks) * double(batch) * (in + out)};
}

std::vector<BucketSpan> cut_buckets(std::span<const TravelParam> params, size_t bucket_bytes) {
    std::vector<BucketSpan> buckets;
    size_t begin = 0, floats = 0, limit = bucket_bytes / 4;
    const auto close = [&](size_t end) {
        if (end > begin) {
            buckets.push_back({begin, end, false});
            limit = bucket_bytes;
        }
        begin = end, floats = 0;
    };
    for (size_t i = 0; i < params.size(); ++i) {
        if (!params[i].as_factors) {
            floats += params[i].floats;
            if (floats * sizeof(float) >= limit) close(i + 1);
            continue;
        }
        close(i);
        if (!params[i].bias) buckets.push_back({i, i + 1, true});
        begin = i + 1;
    }
    close(params.size());
    return buckets;
}

}  // namespace convoy
