// test_order.cpp — the permutation of an epoch and the ranks' parts of a step.
#include "data/order.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "src/base/check.h"
#include "support.h"

using namespace convoy;

using Samples = std::vector<uint64_t>;

static Samples epoch_of(std::vector<uint64_t> shards, uint64_t window, uint64_t seed,
                        uint32_t epoch) {
    const Order order(shards, window, seed, epoch);
    Samples samples(std::accumulate(shards.begin(), shards.end(), uint64_t(0)));
    for (size_t i = 0; i < samples.size(); ++i) samples[i] = order(i);
    return samples;
}

static Samples sorted(Samples samples) {
    std::ranges::sort(samples);
    return samples;
}

static Samples first(uint64_t n) {
    Samples all(n);
    std::iota(all.begin(), all.end(), uint64_t(0));
    return all;
}

// Of counts that should all be `mean`; (cells − 1) ± √(2·cells) if they are drawn at random.
static double chi_square(std::span<const int> counts, double mean) {
    double sum = 0;
    for (int count : counts) sum += (count - mean) * (count - mean) / mean;
    return sum;
}

TEST_CASE("the order of an epoch is a permutation for every size, with and without a window") {
    for (uint64_t n : {0,  1,  2,  3,  4,  5,   6,   7,   8,    9,    15,   16,
                       17, 30, 63, 64, 65, 255, 256, 257, 1000, 4095, 4096, 4097}) {
        CAPTURE(n);
        for (uint32_t epoch : {0, 1}) CHECK(sorted(epoch_of({n}, 0, 5, epoch)) == first(n));
        for (uint64_t window : {1, 2, 7, 100, 5000})
            CHECK(sorted(epoch_of({n / 3, 0, n - n / 3 - n / 4, n / 4}, window, 5, 2)) == first(n));
    }
    const Permutation large((uint64_t(1) << 40) + 1, 7);
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < 1000; ++i) seen.insert(large(i << 30));
    CHECK(seen.size() == 1000);
    CHECK(*seen.rbegin() <= uint64_t(1) << 40);
    CHECK_THROWS_AS(Permutation(3, 1)(3), Error);
}

// The numbers are those of a second program, which knows the formulas only.
TEST_CASE("the order is the same on every machine, and another one for each seed and epoch") {
    CHECK(epoch_of({10}, 0, 5, 2) == Samples{4, 9, 0, 7, 3, 5, 1, 6, 2, 8});
    CHECK(epoch_of({3, 4, 5}, 4, 5, 2) == Samples{7, 9, 8, 10, 3, 5, 4, 11, 2, 0, 1, 6});
    const Samples samples = epoch_of({1000}, 0, 5, 2);
    CHECK(samples == epoch_of({600, 400}, 0, 5, 2));
    CHECK(samples != epoch_of({1000}, 0, 5, 3));
    CHECK(samples != epoch_of({1000}, 0, 6, 2));
    CHECK(samples != epoch_of({1000}, 1000, 5, 2));
}

// Each statistic is within 5 deviations of what a shuffle by the standard library also gives.
TEST_CASE("an order is as good as a shuffle: where samples land, and who follows whom") {
    constexpr int kEpochs = 4000;
    std::mt19937 generator(1);
    for (int n : {4, 5, 9, 16, 23}) {
        CAPTURE(n);
        for (const char* kind : {"order", "window", "std::shuffle"}) {
            CAPTURE(kind);
            std::vector<int> lands(size_t(n * n)), follows(size_t(n * n)), rises(2);
            for (uint32_t epoch = 0; epoch < kEpochs; ++epoch) {
                Samples samples = first(uint64_t(n));
                if (kind[0] == 's')
                    std::ranges::shuffle(samples, generator);
                else
                    samples = epoch_of({uint64_t(n)}, kind[0] == 'w' ? 64 : 0, 1, epoch);
                for (int i = 0; i < n; ++i) ++lands[size_t(i * n) + samples[size_t(i)]];
                for (int i = 1; i < n; ++i)
                    ++follows[samples[size_t(i - 1)] * size_t(n) + samples[size_t(i)]];
                ++rises[samples[0] < samples[size_t(n - 1)]];
            }
            std::erase(follows, 0);  // the diagonal: nobody follows himself
            REQUIRE(follows.size() == size_t(n * (n - 1)));
            const auto within = [](double chi, double cells) {
                return std::abs(chi - cells) < 5 * std::sqrt(2 * cells);
            };
            CHECK(within(chi_square(lands, double(kEpochs) / n), (n - 1) * (n - 1)));
            CHECK(within(chi_square(follows, double(kEpochs) / n), n * (n - 1) - 1));
            CHECK(chi_square(rises, kEpochs / 2.0) < 25);
        }
    }
}

TEST_CASE("the order of a large set has no pattern: neighbours are far apart, strides vary") {
    constexpr uint64_t n = 100'000;
    const Samples samples = epoch_of({n}, 0, 3, 1);
    std::vector<int> cells(32 * 32), strides(64);
    for (uint64_t i = 0; i + 1 < n; ++i) {
        ++cells[samples[i] * 32 / n * 32 + samples[i + 1] * 32 / n];
        ++strides[(samples[i + 1] + n - samples[i]) % n * 64 / n];
    }
    CHECK(std::abs(chi_square(cells, double(n) / 1024) - 1023) < 5 * std::sqrt(2 * 1023.));
    CHECK(std::abs(chi_square(strides, double(n) / 64) - 63) < 5 * std::sqrt(2 * 63.));
}

TEST_CASE("with a window the shards come whole, in another order, and samples move less than N") {
    const std::vector<uint64_t> shards = {50, 0, 70, 30, 50, 100};
    std::set<std::vector<size_t>> orders;
    for (uint32_t epoch = 0; epoch < 10; ++epoch) {
        // Unshuffled: what a window of one gives.
        const Samples plain = epoch_of(shards, 1, 9, epoch), mixed = epoch_of(shards, 20, 9, epoch);
        std::vector<size_t> begins;
        for (size_t i = 0; i < plain.size(); ++i)
            if (i == 0 || plain[i] != plain[i - 1] + 1) begins.push_back(plain[i]);
        orders.insert(begins);
        CHECK(begins.size() <= 5);
        for (size_t block = 0; block < 300; block += 20)
            CHECK(sorted({mixed.begin() + int(block), mixed.begin() + int(block) + 20}) ==
                  sorted({plain.begin() + int(block), plain.begin() + int(block) + 20}));
        CHECK(mixed != plain);
    }
    CHECK(orders.size() > 5);
}

TEST_CASE(
    "visits hold every position at which a shard's samples are read, in the order of reading") {
    const std::vector<uint64_t> shards = {5, 0, 3, 9, 1, 7};
    for (const uint64_t window : {0, 1, 4, 100})
        for (const uint32_t epoch : {0u, 1u}) {
            CAPTURE(window);
            const Order order(shards, window, 3, epoch);
            const std::vector<Visit> visits = order.visits();
            REQUIRE(visits.size() == 5);  // one shard is empty
            CHECK(std::ranges::is_sorted(visits, {}, &Visit::begin));
            std::vector<uint64_t> begins(shards.size() + 1, 0);
            std::partial_sum(shards.begin(), shards.end(), begins.begin() + 1);
            for (uint64_t i = 0; i < 25; ++i) {
                const auto visit = std::ranges::find_if(visits, [&](const Visit& one) {
                    return order(i) >= begins[one.shard] && order(i) < begins[one.shard + 1];
                });
                REQUIRE(visit != visits.end());
                CHECK((i >= visit->begin && i < visit->end));
                CHECK(visit->end <= 25);
                if (window > 0)  // no longer than its samples and the window at both ends
                    CHECK(visit->end - visit->begin <= shards[visit->shard] + 2 * (window - 1));
            }
        }
    CHECK(Order(std::vector<uint64_t>{}, 0, 1, 0).visits().empty());
}

TEST_CASE("--shuffle is full or a window") {
    CHECK(parse_shuffle("full") == 0);
    CHECK(parse_shuffle("window=1000") == 1000);
    for (const char* text : {"", "window", "window=", "window=0", "window=-1", "window=10k", "off",
                             "window=99999999999999999999"})
        CHECK_FAILS(parse_shuffle(text), "window=N");
}

TEST_CASE("the shares of all ranks are a partition of the slice, each within one of its due") {
    const std::vector<std::vector<double>> all = {{1},
                                                  {1, 1},
                                                  {1, 1, 1},
                                                  {5, 3, 2, 0},
                                                  {0, 0, 1},
                                                  {0.1, 0.2, 0.7},
                                                  {1, 1, 1, 1, 1, 1, 1, 1},
                                                  {0, 1, 0, 1, 0}};
    for (const std::vector<double>& shares : all) {
        double sum = 0;
        for (double share : shares) sum += share;
        for (int64_t count : {0, 1, 2, 3, 5, 7, 10, 32, 33, 1000, 1281167}) {
            CAPTURE(count, shares.size());
            int64_t at = 0;
            for (int rank = 0; rank < int(shares.size()); ++rank) {
                const Range part = share_of(count, shares, rank);
                CHECK(part.begin == at);
                CHECK(part.size() >= 0);
                CHECK(std::abs(double(part.size()) - double(count) * shares[size_t(rank)] / sum) <=
                      1);
                if (shares[size_t(rank)] == 0) CHECK(part.size() == 0);
                at = part.end;
            }
            CHECK(at == count);
        }
    }
}

TEST_CASE("share_of divides evenly where the count allows it") {
    const std::vector<double> equal(4, 1.0);
    CHECK(share_of(32, equal, 0) == Range{0, 8});
    CHECK(share_of(32, equal, 3) == Range{24, 32});
    const std::vector<double> shares = {5, 3, 2, 0};
    CHECK(share_of(30, shares, 1) == Range{15, 24});
    CHECK(share_of(30, shares, 3) == Range{30, 30});
    CHECK(largest_share(30, shares) == 15);
    CHECK(largest_share(7, equal) == 2);  // 2 2 1 2
}

TEST_CASE("dealt divides an epoch in proportion, whatever the steps, and to the last sample") {
    const std::vector<std::vector<int64_t>> all = {
        {7}, {0, 0}, {5, 0, 9}, {100, 1, 1, 50}, {3, 3, 3}};
    for (const std::vector<int64_t>& parts : all) {
        CAPTURE(parts.size());
        const int64_t size = std::accumulate(parts.begin(), parts.end(), int64_t(0));
        for (size_t r = 0; r < parts.size(); ++r) {
            CHECK(dealt(0, parts, int(r)) == 0);
            CHECK(dealt(size, parts, int(r)) == parts[r]);
        }
        for (int64_t at = 0; at < size; ++at) {
            int64_t together = 0;
            for (size_t r = 0; r < parts.size(); ++r) {
                const int64_t now = dealt(at, parts, int(r)), then = dealt(at + 1, parts, int(r));
                together += now;
                CHECK((then == now || then == now + 1));
                CHECK(std::abs(double(now) - double(at * parts[r]) / double(size)) <=
                      double(parts.size()));
                for (const int64_t count : {1, 4, 30})
                    CHECK(dealt(std::min(size, at + count), parts, int(r)) - now <=
                          most_dealt(count, parts, int(r)));
            }
            CHECK(together == at);
        }
        CHECK_THROWS_AS(dealt(size + 1, parts, 0), Error);
    }
    // Not much more than the proportion: 30·100/152 = 19.7, 30/152 = 0.2, 30·50/152 = 9.9.
    CHECK(most_dealt(30, all[3], 0) <= 21);
    CHECK(most_dealt(30, all[3], 1) <= 2);
    CHECK(most_dealt(30, all[3], 3) <= 12);
    const std::vector<int64_t> billions = {int64_t(3) << 32, int64_t(1) << 32};
    CHECK(dealt(int64_t(2) << 32, billions, 1) == int64_t(1) << 31);
}

TEST_CASE("parse_shares reads weights and says what is wrong with others") {
    CHECK(parse_shares("5:3:2:0", 4) == std::vector<double>{5, 3, 2, 0});
    CHECK(parse_shares("0.5:1", 2) == std::vector<double>{0.5, 1});
    CHECK(parse_shares("", 3) == std::vector<double>{1, 1, 1});
    const auto refuses = [](const char* text, int world, const char* why) {
        CHECK_FAILS(parse_shares(text, world), why);
    };
    refuses("5:3", 3, "2 weights for a world of 3 ranks");
    refuses("5:x", 2, "'x' is not a number");
    refuses("5:", 2, "'' is not a number");
    refuses("5:3 ", 2, "'3 ' is not a number");
    refuses("5:inf", 2, "'inf' is not a number");
    refuses("5:-1", 2, "-1 is negative");
    refuses("0:0", 2, "all 0");
}
