#include "src/train/random_batch.h"

#include "src/base/random.h"

namespace convoy {

Batch random_batch(Range part, int64_t global, int size, int classes, uint64_t seed, float* slot) {
    Batch batch;
    batch.x = slot;
    batch.n = batch.wanted = int(part.size());
    batch.global_wanted = global;
    for (int64_t i = part.begin; i < part.end; ++i) {
        Random random(seed, 0, uint64_t(i), kBench);
        batch.samples.push_back(uint64_t(i));
        batch.positions.push_back(int32_t(i));
        batch.labels.push_back(int32_t(random.below(uint64_t(classes))));
        float* row = slot + size_t(i - part.begin) * size_t(size) * size_t(size) * 3;
        for (int p = 0; p < size * size * 3; ++p) row[p] = random.uniform(-2, 2);
    }
    return batch;
}

}  // namespace convoy
