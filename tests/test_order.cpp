// test_order.cpp — the permutation of an epoch and the ranks' parts of a step.
#include "data/order.h"

#include <algorithm>
#include <set>

#include "src/base/check.h"
#include "support.h"

using namespace convoy;

TEST_CASE("epoch_order is a permutation, the same for the same (seed, epoch), else another") {
    for (size_t n : {size_t(0), size_t(1), size_t(2), size_t(1000)}) {
        std::vector<uint32_t> order = epoch_order(n, 5, 2), again = epoch_order(n, 5, 2);
        CHECK(order == again);
        std::sort(again.begin(), again.end());
        for (size_t i = 0; i < n; ++i) CHECK(again[i] == i);
    }
    CHECK(epoch_order(1000, 5, 2) != epoch_order(1000, 5, 3));
    CHECK(epoch_order(1000, 5, 2) != epoch_order(1000, 6, 2));
}

TEST_CASE("epoch_order puts every sample at every place equally often") {
    // 4 samples, 6000 epochs: each (sample, place) 1500 times, deviation √(6000·¼·¾) = 33.5.
    int counts[4][4] = {};
    for (uint32_t epoch = 0; epoch < 6000; ++epoch) {
        const std::vector<uint32_t> order = epoch_order(4, 1, epoch);
        for (int place = 0; place < 4; ++place) ++counts[order[size_t(place)]][place];
    }
    for (auto& row : counts)
        for (int count : row) CHECK(std::abs(count - 1500) < 5 * 34);
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
            CAPTURE(count);
            CAPTURE(shares.size());
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

TEST_CASE("parse_shares reads weights and says what is wrong with others") {
    CHECK(parse_shares("5:3:2:0", 4) == std::vector<double>{5, 3, 2, 0});
    CHECK(parse_shares("0.5:1", 2) == std::vector<double>{0.5, 1});
    CHECK(parse_shares("", 3) == std::vector<double>{1, 1, 1});
    const auto refuses = [](const char* text, int world, const char* why) {
        CHECK_THROWS_WITH_AS(parse_shares(text, world), doctest::Contains(why), Error);
    };
    refuses("5:3", 3, "2 weights for a world of 3 ranks");
    refuses("5:x", 2, "'x' is not a number");
    refuses("5:", 2, "'' is not a number");
    refuses("5:3 ", 2, "'3 ' is not a number");
    refuses("5:inf", 2, "'inf' is not a number");
    refuses("5:-1", 2, "-1 is negative");
    refuses("0:0", 2, "all 0");
}
