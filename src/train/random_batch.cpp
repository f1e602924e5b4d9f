#include "src/train/random_batch.h"

#include <algorithm>

#include "src/base/random.h"

namespace convoy {

Batch random_batch(Backend& backend, int64_t global, std::span<const double> shares, int rank,
                   InputSize size, int classes, uint64_t seed) {
    const Range part = share_of(global, shares, rank);
    const size_t image = size.elems();
    float* pixels = backend.alloc_host(size_t(std::max<int64_t>(part.size(), 1)) * image);
    Batch batch;
    batch.x = pixels;
    batch.n = batch.wanted = int(part.size());
    batch.global_wanted = global;
    for (int r = 0; r < int(shares.size()); ++r)
        batch.wanted_by.push_back(share_of(global, shares, r).size());
    for (int64_t i = part.begin; i < part.end; ++i) {
        Random random(seed, 0, uint64_t(i), kBench);
        batch.samples.push_back(uint64_t(i));
        batch.positions.push_back(int32_t(i));
        batch.labels.push_back(int32_t(random.below(uint64_t(classes))));
        for (size_t p = 0; p < image; ++p) *pixels++ = random.uniform(-2, 2);
    }
    return batch;
}

}  // namespace convoy
