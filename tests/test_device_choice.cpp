// Which GPU a rank takes, and ranks that find themselves on one: no GPU is needed to test that.
#include "src/job/device_choice.h"

#include <atomic>

#include "kernels/backend.h"
#include "tests/net_support.h"
#include "tests/process.h"

using namespace convoy;
using Variables = std::map<std::string, std::string>;

// Ranks 0 to 4 on two hosts, as they may arrive: a b a a b.
static std::vector<Peer> two_hosts() {
    return {{0, "a", "a:1"}, {1, "b", "b:1"}, {2, "a", "a:2"}, {3, "a", "a:3"}, {4, "b", "b:2"}};
}

TEST_CASE("device: a rank's place on its host is counted where no launcher says it") {
    const std::vector<Peer> peers = two_hosts();
    const int number[] = {0, 0, 1, 2, 1}, ranks[] = {3, 2, 3, 3, 2};
    for (int rank = 0; rank < 5; ++rank) {
        CAPTURE(rank);
        const LocalPlace place = local_place({}, peers, rank);
        CHECK(place.number == number[rank]);
        CHECK(place.ranks == ranks[rank]);
        CHECK(place.who.empty());
    }
    CHECK(local_place({}, {}, 0).number == 0);  // alone: there are no peers

    const LocalPlace told = local_place({{"SLURM_LOCALID", "2"}}, peers, 0);
    CHECK(told.number == 2);
    CHECK(told.ranks == 3);
    CHECK(told.who == "SLURM_LOCALID");
    CHECK(local_place({{"LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}, peers, 0).who ==
          "LOCAL_RANK");
    CHECK_THROWS_WITH_AS(
        local_place({{"LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "2"}}, peers, 0),
        doctest::Contains("LOCAL_RANK says 1, OMPI_COMM_WORLD_LOCAL_RANK says 2"), Error);
    CHECK_THROWS_WITH_AS(local_place({{"LOCAL_RANK", "-1"}}, peers, 0),
                         doctest::Contains("LOCAL_RANK cannot be '-1'"), Error);
}

TEST_CASE("device: launchers' variables reach the choice, Slurm's only inside a step") {
    const auto launcher = [](const Variables& environment) {
        return parse_command_line({}, environment).launcher;
    };
    CHECK(launcher({{"LOCAL_RANK", "3"}, {"CUDA_VISIBLE_DEVICES", "1,2"}, {"HOME", "/"}}) ==
          Variables{{"LOCAL_RANK", "3"}, {"CUDA_VISIBLE_DEVICES", "1,2"}});
    CHECK(launcher({{"SLURM_LOCALID", "0"}, {"SLURM_PROCID", "0"}}).empty());
    CHECK(launcher({{"SLURM_LOCALID", "1"}, {"SLURM_PROCID", "3"}, {"SLURM_STEP_ID", "0"}}) ==
          Variables{{"SLURM_LOCALID", "1"}});
}

TEST_CASE(
    "device: each rank takes the GPU of its place, and too few are an error with both numbers") {
    const LocalPlace third{2, 3, "LOCAL_RANK"};
    CHECK(device_for("cuda", third, 4, false) == "cuda:2");
    CHECK(device_for("", third, 3, false) == "cuda:2");
    CHECK(device_for("cuda:0", third, 4, false) == "cuda:0");  // what is said by number stands
    CHECK(device_for("cpu", third, 4, false) == "cpu");
    CHECK(device_for("simt", third, 4, false) == "simt");
    CHECK(device_for("cuda", third, 0, false) == "cuda");  // no GPU at all: the backend says why
    CHECK(device_for("", third, 0, false) == "");
    CHECK(device_for("cuda", third, 1, true) == "cuda:0");  // the one that the launcher left
    CHECK(device_for("cuda", third, 3, true) == "cuda:2");
    CHECK(device_for("", LocalPlace{0, 3, ""}, 2, false) == "cpu");  // and so do its neighbours
    CHECK(device_for("", LocalPlace{2, 3, ""}, 2, false) == "cpu");
    CHECK_THROWS_WITH_AS(device_for("cuda", third, 2, false),
                         doctest::Contains("(LOCAL_RANK), and there are 2 GPUs for 3 ranks"),
                         Error);
    CHECK_THROWS_WITH_AS(device_for("cuda", LocalPlace{1, 1, ""}, 1, false),
                         doctest::Contains("there is 1 GPU for 2 ranks"), Error);
}

TEST_CASE("device: ranks on one GPU are found by its UUID, whatever its number") {
    const std::vector<DeviceClaim> claims = {{"cuda:0", "GPU-a", false}, {"cpu", "", false},
                                             {"cuda:0", "GPU-b", true},  {"cuda:1", "GPU-a", true},
                                             {"cuda:5", "GPU-b", true},  {"cpu", "", false}};
    const std::vector<SharedDevice> shared = shared_devices(claims);
    REQUIRE(shared.size() == 2);
    CHECK(shared[0].sentence ==
          "rank 0 (cuda:0), rank 3 (cuda:1) compute on one and the same GPU, GPU-a");
    CHECK(!shared[0].meant);  // rank 0 did not ask for it by number
    CHECK(shared[1].sentence.find("rank 2 (cuda:0), rank 4 (cuda:5)") == 0);
    CHECK(shared[1].meant);
    CHECK(shared_devices(std::span(claims).first(3)).empty());
}

TEST_CASE("device: the comparison ends the job on every rank, or is a notice of rank 0") {
    const auto compare = [](bool by_number, const std::string& of_rank_1) {
        Diary diary;
        std::atomic<int> refused = 0;
        run_ranks(
            2, [](JoinOptions&) {},
            [&](Job& job) {
                const bool first = job.communicator->rank() == 0;
                try {
                    compare_devices(*job.communicator,
                                    {"cuda:0", first ? "GPU-a" : of_rank_1, by_number || first},
                                    diary.log());
                } catch (const Error& error) {
                    CHECK(std::string(error.what()).find("rank 0 (cuda:0), rank 1 (cuda:0)") == 0);
                    ++refused;
                }
            });
        return std::pair(refused.load(), diary.text().find("as asked for") != std::string::npos);
    };
    CHECK(compare(false, "GPU-a") == std::pair(2, false));
    CHECK(compare(true, "GPU-a") == std::pair(0, true));
    CHECK(compare(false, "GPU-b") == std::pair(0, false));
}

TEST_CASE("device: the CPU has no identity, the model has one as GPUs do") {
    CHECK(device_identity("cpu") == "");
    const std::string model = device_identity("simt");
    CAPTURE(model);
    CHECK(model.size() == std::string("simt-00000000-0000-0000-0000-000000000000").size());
    CHECK(std::count(model.begin(), model.end(), '-') == 5);
    CHECK(device_identity("simt") == model);
    CHECK_THROWS_WITH_AS(device_identity("cuda:999"), doctest::Contains("cuda:999"), Error);
}

TEST_CASE("program: a GPU that one rank does not have ends the job on both, by name") {
    TempDir folder;
    const std::string at = cat("127.0.0.1:", free_port());
    Process rank0(folder, "rank0",
                  {"--coord", at, "--rank", "0", "--world", "2", "--generated", "48", "--device",
                   "cpu", "--out", folder / "run"});
    Process rank1(folder, "rank1", {"--coord", at, "--rank", "1", "--device", "cuda:999"});
    CHECK(rank1.wait() == 1);
    CHECK(rank0.wait() == 1);
    for (const std::string& output : {rank0.output(), rank1.output()}) {
        CAPTURE(output);
        CHECK(output.find("--device cuda:999: th") != std::string::npos);
    }
}
