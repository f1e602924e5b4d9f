#include <atomic>
#include <cstring>

#include "net/ring/reduce.h"
#include "tests/net_support.h"

namespace convoy {

// Small integers, distinct for neighbouring ranks and positions: every partial sum, at most 16 ·
// 16, is exact in a float and in a bf16 alike.
static float addend(int rank, size_t i) { return float((rank * 3 + int(i % 1009)) % 17); }

#ifdef __SANITIZE_THREAD__  // a tenth of the speed
constexpr size_t kLarge = 300'000;
#else
constexpr size_t kLarge = 3'000'000;
#endif

static void check_sums(int world, bool bf16, const std::vector<size_t>& sizes) {
    CAPTURE(world, bf16);
    std::vector<std::vector<std::vector<float>>> results(static_cast<size_t>(world));
    run_ranks(
        world, [&](JoinOptions& options) { options.bf16_wire = bf16 && options.rank == 0; },
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
        std::vector<float> want(sizes[k], 0);
        for (int rank = 0; rank < world; ++rank)
            for (size_t i = 0; i < sizes[k]; ++i) want[i] += addend(rank, i);
        CAPTURE(sizes[k]);
        for (int rank = 0; rank < world; ++rank) CHECK(results[size_t(rank)][k] == want);
    }
}

TEST_CASE("allreduce_sum is exact on every rank, worlds 1 to 8 and 16, awkward sizes, both wires") {
    for (int world : {1, 2, 3, 4, 5, 6, 7, 8, 16})
        for (bool bf16 : {false, true})
            check_sums(world, bf16,
                       {0, 1, 7, size_t(world) - 1, 1000, 4096, 4097, 12'007, 70'001, kLarge});
}

TEST_CASE("with the bf16 wire every rank ends with the same bits, off by one rounding a hop") {
    // In steps of halves for 12'001 floats on 4 ranks or more, else around the ring.
    const std::vector<std::pair<int, size_t>> cases = {
        {2, 50'001}, {3, 50'001}, {4, 50'001}, {5, 50'001}, {4, 12'001}, {6, 12'001}, {8, 12'001}};
    for (const auto& [world, n] : cases) {
        CAPTURE(world);
        CAPTURE(n);
        std::vector<std::vector<float>> results(static_cast<size_t>(world));
        run_ranks(
            world, [](JoinOptions& options) { options.bf16_wire = true; },
            [&](Job& job) {
                auto& mine = results[size_t(job.communicator->rank())];
                mine = random_floats(n, uint64_t(job.communicator->rank()) + 1);
                job.communicator->allreduce_sum(mine).get();
            });
        std::vector<double> want(n, 0);
        for (int rank = 0; rank < world; ++rank) {
            const auto x = random_floats(n, uint64_t(rank) + 1);
            for (size_t i = 0; i < n; ++i) want[i] += double(x[i]);
        }
        // A partial sum is below `world`; each of `world` hops rounds to 8 bits, by half a unit.
        CHECK_CLOSE(results[0], want, world * world * 0x1p-9);
        for (int rank = 1; rank < world; ++rank)
            CHECK(std::memcmp(results[size_t(rank)].data(), results[0].data(), n * 4) == 0);
    }
}

TEST_CASE("bf16 packing rounds to nearest even, keeps infinity and NaN, and comes back exactly") {
    const float one = 1, up = std::nextafter(1.0f + 0x1p-8f, 2.0f), tie = 1.0f + 0x1p-8f,
                odd_tie = 1.0f + 0x1.8p-7f, inf = std::numeric_limits<float>::infinity();
    const float in[] = {one, up, tie, odd_tie, inf, -inf, NAN, 3.4e38f, 0x1p-140f};
    const float want[] = {1, 1.0f + 0x1p-7f, 1, 1.0f + 0x1p-6f, inf, -inf, NAN, inf, 0};
    uint16_t packed[9];
    float out[9];
    pack_bf16(packed, in, 9);
    unpack_bf16(out, packed, 9);
    for (int i = 0; i < 8; ++i) {
        CAPTURE(i);
        CHECK((std::isnan(want[i]) ? std::isnan(out[i]) : out[i] == want[i]));
    }
    CHECK(std::abs(out[8] - in[8]) <= 0x1p-134f);  // subnormal: half a unit of 2^-133
}

TEST_CASE("each rank sends 2(world-1)/world of the data and a header, half of it as bf16") {
    for (int world : {2, 3, 4, 8})
        for (bool bf16 : {false, true}) {
            CAPTURE(world, bf16);
            const size_t n = size_t(world) * 70'000;
            std::vector<uint64_t> sent(static_cast<size_t>(world));
            run_ranks(
                world, [&](JoinOptions& options) { options.bf16_wire = bf16 && options.rank == 0; },
                [&](Job& job) {
                    std::vector<float> data(n, 1);
                    const uint64_t before = job.communicator->bytes_sent();
                    job.communicator->allreduce_sum(data).get();
                    sent[size_t(job.communicator->rank())] =
                        job.communicator->bytes_sent() - before;
                });
            const size_t wire_bytes = bf16 ? 2 : 4;
            for (uint64_t bytes : sent)
                CHECK(bytes == 2 * size_t(world - 1) * (n / size_t(world) * wire_bytes) + 24);
        }
}

TEST_CASE("a sum of some KB takes 2 log2(world) messages, and no more bytes than in the ring") {
    std::vector<uint64_t> sent(8);
    run_ranks(
        8, [](JoinOptions&) {},
        [&](Job& job) {
            std::vector<float> data(8 * 1000, 1);
            const uint64_t before = job.communicator->bytes_sent();
            job.communicator->allreduce_sum(data).get();
            sent[size_t(job.communicator->rank())] = job.communicator->bytes_sent() - before;
        });
    for (uint64_t bytes : sent) CHECK(bytes == 2 * 7 * 4000 + 6 * 24);
}

TEST_CASE("a small sum takes log2(world) messages of everything") {
    std::vector<uint64_t> sent(8);
    run_ranks(
        8, [](JoinOptions&) {},
        [&](Job& job) {
            std::vector<float> data(100, 1);
            const uint64_t before = job.communicator->bytes_sent();
            job.communicator->allreduce_sum(data).get();
            sent[size_t(job.communicator->rank())] = job.communicator->bytes_sent() - before;
        });
    for (uint64_t bytes : sent) CHECK(bytes == 3 * (400 + 24));
}

TEST_CASE("broadcast, gather, allgather and barrier on 1 to 5 ranks, in order with sums") {
    for (int world = 1; world <= 5; ++world) {
        CAPTURE(world);
        std::atomic<int> wrong{0};
        run_ranks(
            world, [](JoinOptions&) {},
            [&](Job& job) {
                Communicator& c = *job.communicator;
                const int me = c.rank();
                for (size_t n : {size_t(0), size_t(3), size_t(1'000'003)}) {
                    std::vector<std::byte> data(n, std::byte(me == 0 ? 77 : 0));
                    c.broadcast(data);
                    for (std::byte b : data) wrong += b != std::byte(77);
                }
                // Unequal blocks, one of them empty, and a sum right behind them.
                std::vector<std::vector<float>> blocks(static_cast<size_t>(world));
                std::vector<std::span<float>> spans;
                for (int r = 0; r < world; ++r) {
                    blocks[size_t(r)].assign(size_t(r) * 70'001, r == me ? float(r) : -1.0f);
                    spans.push_back(blocks[size_t(r)]);
                }
                std::vector<float> ones(5000, 1);
                auto gathered = c.gather(spans);
                auto summed = c.allreduce_sum(ones);
                summed.get();
                gathered.get();
                for (int r = 0; r < world; ++r)
                    for (float x : blocks[size_t(r)]) wrong += x != float(r);
                for (float x : ones) wrong += x != float(world);
                const std::vector<std::byte> mine(size_t(me) * 1000, std::byte(me));
                const auto all = c.allgather(mine);
                wrong += int(all.size()) != world;
                for (int r = 0; r < world; ++r) {
                    wrong += all[size_t(r)].size() != size_t(r) * 1000;
                    for (std::byte b : all[size_t(r)]) wrong += b != std::byte(r);
                }
                c.barrier();
            });
        CHECK(wrong == 0);
    }
}

TEST_CASE("nobody leaves a barrier before the last has come") {
    for (int world : {2, 3, 5, 8}) {
        std::atomic<int> here{0}, early{0};
        run_ranks(
            world, [](JoinOptions&) {},
            [&](Job& job) {
                for (int round = 1; round <= 20; ++round) {
                    ++here;
                    job.communicator->barrier();
                    early += here < round * world;
                }
            });
        CHECK(early == 0);
    }
}

TEST_CASE("every link of the ring is timed in both directions, and all ranks hold the same list") {
    for (int world : {2, 3}) {
        std::vector<std::vector<LinkTiming>> lists(static_cast<size_t>(world));
        run_ranks(
            world, [](JoinOptions&) {},
            [&](Job& job) {
                const auto list = job.communicator->measure_links();
                lists[size_t(job.communicator->rank())] = list;
            });
        REQUIRE(lists[0].size() == size_t(world == 2 ? 2 : 2 * world));
        for (size_t i = 0; i < lists[0].size(); ++i) {
            CHECK(lists[0][i].latency_seconds > 0);
            CHECK(lists[0][i].bytes_per_second > 0);
            CHECK(lists[0][i].from == lists[0][i ^ 1].to);
            for (const auto& list : lists)
                CHECK(list[i].bytes_per_second == lists[0][i].bytes_per_second);
        }
    }
}

}  // namespace convoy
