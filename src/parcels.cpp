#include "src/parcels.h"

namespace convoy {

LinearTraffic linear_traffic(int inputs, int outputs, bool bias, int64_t batch, int world) {
    const double in = inputs, out = outputs;
    const double passed_on = double(world - 1) / world * sizeof(float);
    return {2 * passed_on * (in * out + (bias ? out : 0)), passed_on * double(batch) * (in + out)};
}

std::vector<ParcelRows> cut_rows(std::span<const TravelRow> rows, size_t bucket_bytes) {
    std::vector<ParcelRows> parcels;
    size_t begin = 0, floats = 0, limit = bucket_bytes / 4;
    const auto close = [&](size_t end) {
        if (end > begin) {
            parcels.push_back({begin, end, false});
            limit = bucket_bytes;
        }
        begin = end, floats = 0;
    };
    for (size_t i = 0; i < rows.size(); ++i) {
        if (!rows[i].as_factors) {
            floats += rows[i].floats;
            if (floats * sizeof(float) >= limit) close(i + 1);
            continue;
        }
        close(i);
        if (!rows[i].bias) parcels.push_back({i, i + 1, true});
        begin = i + 1;
    }
    close(rows.size());
    return parcels;
}

}  // namespace convoy
