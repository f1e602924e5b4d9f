#include <numeric>

#include "tests/net_support.h"

namespace convoy {

// Small integers, distinct for each rank and position: their sums are exact in a float.
static float addend(int rank, size_t i) { return float((rank + 1) * 7 + int(i % 1009)); }
static float total(int world, size_t i) {
    float sum = 0;
    for (int rank = 0; rank < world; ++rank) sum += addend(rank, i);
    return sum;
}

static void check_sums(int world, const std::vector<size_t>& sizes, bool bf16 = false) {
    CAPTURE(world);
    std::vector<std::vector<std::vector<float>>> results(static_cast<size_t>(world));
    run_ranks(
        world, [&](JoinOptions& options) { options.bf16_wire = bf16; },
        [&](Job& job) {
            auto& mine = results[size_t(job.communicator->rank())];
            std::vector<std::future<void>> sums;
            for (size_t n : sizes) {
                mine.emplace_back(n);
                for (size_t i = 0; i < n; ++i) mine.back()[i] = addend(job.communicator->rank(), i);
            }
            for (auto& data : mine) sums.push_back(job.communicator->allreduce_sum(data));
            for (auto& sum : sums) sum.get();
        });
    for (size_t k = 0; k < sizes.size(); ++k) {
        size_t wrong = 0, different = 0;
        for (int rank = 0; rank < world; ++rank)
            for (size_t i = 0; i < sizes[k]; ++i) {
                wrong += results[size_t(rank)][k][i] != total(world, i);
                different += results[size_t(rank)][k][i] != results[0][k][i];
            }
        CAPTURE(sizes[k]);
        if (!bf16) CHECK(wrong == 0);
        CHECK(different == 0);
    }
}

TEST_CASE("allreduce_sum is exact on every rank, worlds 1 to 8 and 16, awkward sizes") {
    for (int world : {1, 2, 3, 4, 5, 6, 7, 8, 16})
        check_sums(world, {0, 1, 7, size_t(world) - 1, 1000, 2048, 2049, 70'001});
}

TEST_CASE("allreduce_sum is exact for 3 million floats") {
    check_sums(2, {3'000'000});
    check_sums(5, {3'000'000});
}

}  // namespace convoy
