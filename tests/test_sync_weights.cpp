// Whether all ranks hold the same weights; ranks that differ take those of one rank.
#include "src/session/sync_weights.h"

#include "tests/net_support.h"

using namespace convoy;

namespace {

struct Change {
    int rank;
    int arena;  // 0: weights; 1: the optimizer's first state
    size_t at;
    float value;
};

// What each rank finds; afterwards all hold the values of `root`. same: ranks that should do so.
void check_difference(int world, const std::vector<Change>& changes, int root,
                      const std::vector<int>& differ, const std::string& tensor,
                      std::vector<bool> same = {}) {
    same.resize(size_t(world), same.empty());
    CAPTURE(world, tensor);
    run_ranks(
        world, [](JoinOptions&) {},
        [&](Job& job) {
            const int rank = job.communicator->rank();
            const auto backend = make_backend("cpu");
            Params params;
            params.add({.name = "first", .shape = {1, 1, 1, 5}});
            params.add({.name = "second", .shape = {1, 1, 1, 40}});
            params.allocate(*backend, 7);
            const auto values = [&](int of) {
                std::vector<float> weights(params.weights_size), state(params.trained_size);
                for (size_t i = 0; i < weights.size(); ++i) weights[i] = float(i);
                for (size_t i = 0; i < state.size(); ++i) state[i] = float(i) / 2;
                for (const Change& c : changes)
                    if (c.rank == of) (c.arena == 0 ? weights : state)[c.at] = c.value;
                return std::pair(weights, state);
            };
            auto [weights, state] = values(rank);
            std::ranges::copy(weights, params.weights);
            const std::vector<std::span<float>> arenas = {{params.weights, params.weights_size},
                                                          state};
            const Difference found =
                take_from(root, same, params, arenas, *backend, *job.communicator);
            weights.assign(params.weights, params.weights + params.weights_size);
            CHECK(std::pair(weights, state) == values(root));
            CHECK(found.ranks == differ);
            CHECK(found.tensor == tensor);
        });
}

// Two ranks of which the other holds other weights, and is lost while it sends the second part.
struct LostSender : Communicator {
    LostSender() : Communicator(1, 2) {}
    std::vector<std::vector<std::byte>> allgather(std::span<const std::byte> mine) override {
        std::vector<std::vector<std::byte>> all(2, {mine.begin(), mine.end()});
        for (std::byte& byte : all[0]) byte ^= std::byte(1);
        return all;
    }
    void broadcast(std::span<std::byte> data, int) override {
        if (++parts == 2) throw RingBroken("rank 0 is lost");
        std::ranges::fill(data, std::byte(1));
    }
    int parts = 0;
};

}  // namespace

TEST_CASE("take_from: if the sender is lost, nothing of what it sent is taken") {
    const auto backend = make_backend("cpu");
    Params params;
    params.add({.name = "first", .shape = {1, 1, 1, 5}});
    params.allocate(*backend, 7);
    std::vector<float> state(params.trained_size, 3);
    const std::vector<float> before(params.weights, params.weights + params.weights_size);
    const std::vector<std::span<float>> arenas = {{params.weights, params.weights_size}, state};
    LostSender lost;
    CHECK_THROWS_AS(take_from(0, {true, true}, params, arenas, *backend, lost), RingBroken);
    CHECK(lost.parts == 2);
    CHECK(std::vector<float>(params.weights, params.weights + params.weights_size) == before);
    CHECK(state == std::vector<float>(state.size(), 3));
}

TEST_CASE("take_from: all take what one rank holds; who differs, and in which tensor first") {
    check_difference(3, {}, 0, {}, "");
    check_difference(1, {}, 0, {}, "");
    check_difference(3, {{2, 0, 20, -1}}, 0, {2}, "second");
    check_difference(3, {{0, 0, 20, -1}, {0, 0, 3, -1}}, 0, {1, 2}, "first");
    check_difference(3, {{1, 1, 17, -1}}, 0, {1}, "state 0 of second");
    check_difference(2, {{0, 1, 2, -1}}, 0, {1}, "state 0 of first");
    check_difference(4, {{1, 0, 0, -0.0f}, {3, 0, 0, -0.0f}}, 0, {1, 3}, "first");  // bits count
    // Ranks that are behind, or have just joined, take the values as well, and are not named.
    const std::vector<Change> behind = {{0, 0, 1, 9}, {1, 0, 1, 9}, {2, 0, 30, 9}};
    check_difference(5, behind, 3, {2}, "second", {false, false, true, true, true});
    check_difference(3, {{0, 0, 1, 9}}, 1, {}, "", {false, true, false});
}
