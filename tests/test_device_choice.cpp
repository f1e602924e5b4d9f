// Which GPU a rank takes, and two ranks on one GPU. These tests need no GPU.
#include "src/session/device_choice.h"

#include <atomic>
#include <cstdlib>

#include "kernels/cuda/make_backend.h"
#include "tests/jobs.h"
#include "tests/net_support.h"

using namespace convoy;

// Ranks 0 to 4 on two hosts, as they may arrive: a b a a b.
static std::vector<Peer> two_hosts() {
    return {{"a", "a:1"}, {"b", "b:1"}, {"a", "a:2"}, {"a", "a:3"}, {"b", "b:2"}};
}

TEST_CASE("device: a rank's number on its host is counted where no launcher says it") {
    const std::vector<Peer> peers = two_hosts();
    const int number[] = {0, 0, 1, 2, 1}, ranks[] = {3, 2, 3, 3, 2};
    for (int rank = 0; rank < 5; ++rank) {
        CAPTURE(rank);
        const LocalRank local = local_rank({}, peers, rank);
        CHECK(local.number == number[rank]);
        CHECK(local.ranks == ranks[rank]);
        CHECK(local.given_by.empty());
    }
    CHECK(local_rank({}, {}, 0).number == 0);  // alone: there are no peers

    CommandLine line;
    line.config.local_rank = 2, line.given["local-rank"] = "SLURM_LOCALID";
    const LocalRank told = local_rank(line, peers, 0);
    CHECK(told.number == 2);
    CHECK(told.ranks == 3);
    CHECK(told.given_by == "SLURM_LOCALID");
}

TEST_CASE(
    "device: each rank takes the GPU of its number, and too few are an error with both numbers") {
    const LocalRank third{2, 3, "LOCAL_RANK"};
    CHECK(device_for("cuda", third, 4, false) == "cuda:2");
    CHECK(device_for("", third, 3, false) == "cuda:2");
    CHECK(device_for("cuda:0", third, 4, false) == "cuda:0");  // what is said by number stands
    CHECK(device_for("cpu", third, 4, false) == "cpu");
    CHECK(device_for("simt", third, 4, false) == "simt");
    CHECK(device_for("cuda", third, 0, false) == "cuda");  // no GPU at all: the backend says why
    CHECK(device_for("", third, 0, false) == "");
    CHECK(device_for("cuda", third, 1, true) == "cuda:0");  // the one that the launcher left
    CHECK(device_for("cuda", third, 3, true) == "cuda:2");
    CHECK(device_for("", LocalRank{0, 3, ""}, 2, false) == "cpu");  // and so do its neighbours
    CHECK(device_for("", LocalRank{2, 3, ""}, 2, false) == "cpu");
    CHECK_FAILS(device_for("cuda", third, 2, false),
                "(LOCAL_RANK), and there are 2 GPUs for 3 ranks");
    CHECK_FAILS(device_for("cuda", LocalRank{1, 1, ""}, 1, false), "there is 1 GPU for 2 ranks");
}

TEST_CASE("device: two ranks on one GPU end the job on every rank, or are a notice of rank 0") {
    // Returns the notices. refused: the beginning of the error of every rank; "": there is none.
    const auto compare = [](const std::vector<RankDevice>& devices, const std::string& refused) {
        Diary diary;
        run_ranks(
            int(devices.size()), [](JoinOptions&) {},
            [&](Job& job) {
                const std::string error = error_of([&] {
                    compare_devices(*job.communicator, devices[size_t(job.communicator->rank())],
                                    diary.log);
                });
                CHECK(error.starts_with(refused));
                CHECK(error.empty() == refused.empty());
            });
        return diary.text();
    };
    std::vector<RankDevice> devices = {{"cuda:0", "GPU-a", false}, {"cpu", "", false},
                                       {"cuda:0", "GPU-b", true},  {"cuda:1", "GPU-a", true},
                                       {"cuda:5", "GPU-b", true},  {"cpu", "", false}};
    // Found by its UUID, whatever its number. Rank 0 did not ask for it by number.
    compare(devices, "rank 0 (cuda:0), rank 3 (cuda:1) compute on the same GPU, GPU-a");
    devices[0].by_number = true;
    const std::string notices = compare(devices, "");
    CHECK(contains(notices, "rank 0 (cuda:0), rank 3 (cuda:1) compute on the same GPU, GPU-a, as"));
    CHECK(contains(notices, "rank 2 (cuda:0), rank 4 (cuda:5) compute on the same GPU, GPU-b, as"));
    devices.resize(3);
    CHECK(compare(devices, "") == "");
}

TEST_CASE("device: the CPU has no identity, the emulator has one as GPUs do") {
    CHECK(device_identity("cpu") == "");
    const std::string emulator = device_identity("simt");
    CAPTURE(emulator);
    CHECK(emulator.size() == std::string("simt-00000000-0000-0000-0000-000000000000").size());
    CHECK(std::count(emulator.begin(), emulator.end(), '-') == 5);
    CHECK(device_identity("simt") == emulator);
    CHECK_FAILS(device_identity("cuda:999"), "cuda:999");
}

TEST_CASE("program: a GPU that one rank does not have ends the job on both, by name") {
    TempDir folder;
    Cluster ranks(folder, 2, {"--generated", "48", "--device", "cpu", "--out", folder / "run"},
                  {"--device", "cuda:999"});
    ranks.end(1);
    for (const auto& rank : ranks.all) CHECK(contains(rank->output(), "--device cuda:999"));
}

TEST_CASE("device: a GPU without machine code in the program is told what the first start does") {
    const char* covered[][2] = {{"75 80 90", "7.5"}, {"80", "8.9"}, {"80 90a", "9.0"}};
    for (const auto& [built, gpu] : covered)
        CHECK(compile_notice(built, gpu[0] - '0', gpu[2] - '0') == "");
    const char* other[][2] = {{"", "8.0"}, {"80 90a", "7.5"}, {"86", "8.0"}, {"80 90a", "12.0"}};
    for (const auto& [built, gpu] : other) {
        const std::string text = gpu;
        const int major = std::stoi(text), minor = text.back() - '0';
        CHECK(contains(compile_notice(built, major, minor), cat("ARCH=", major, minor)));
    }
}

TEST_CASE("device: kernels that the driver compiles go to TMPDIR if HOME cannot be written") {
    const TempDir dir;
    const std::string folder = dir / cat("convoy-kernels-", getuid());
    const auto chosen = [&](const std::string& home, const std::string& want) {
        const pid_t child = fork();  // which has an environment of its own
        if (child == 0) {
            unsetenv("CUDA_CACHE_PATH");
            setenv("HOME", home.c_str(), 1), setenv("TMPDIR", (dir / "").c_str(), 1);
            choose_kernel_cache();
            const char* got = std::getenv("CUDA_CACHE_PATH");
            _exit(want == (got ? std::filesystem::path(got).lexically_normal().string() : "") ? 0
                                                                                              : 1);
        }
        int status = -1;
        waitpid(child, &status, 0);
        return status == 0;
    };
    CHECK(chosen(dir / "", ""));
    CHECK(chosen("/proc/absent", folder));
    std::filesystem::permissions(folder, std::filesystem::perms::others_write,
                                 std::filesystem::perm_options::add);
    CHECK(chosen("/proc/absent", ""));  // anyone may have written there
}
