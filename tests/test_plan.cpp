// Forecasts: the formula against cases done by hand, the order of ranks and warnings, and the
// command as a process.
#include "src/plan/plan.h"

#include "src/base/text.h"
#include "src/cli/commands.h"
#include "src/session/job_setup.h"
#include "tests/jobs.h"
#include "tests/net_support.h"

using namespace convoy;
using doctest::Approx;
using nlohmann::json;

namespace {

constexpr const Way& kFp32 = kWays[0];

// Four ranks on machines of their own, each with 400 images per second. Gradients of 8 MB in
// buckets of 4 MB; each rank sends 100 MB per second.
JobTiming four_ranks() {
    JobTiming timing;
    for (int rank = 0; rank < 4; ++rank) {
        timing.ranks.push_back({cat("machine", rank), 2, 400});
        timing.links.push_back({rank, (rank + 1) % 4, 1e-4, 1e8});
        timing.links.push_back({(rank + 1) % 4, rank, 1e-4, 1e8});
    }
    timing.bucket_bytes = 4'000'000;
    timing.bytes_per_second = 1e8;
    timing.gradient_bytes = 8e6;
    timing.sent_bytes = {0, 0, 8e6, 32e6 / 3, 12e6};
    return timing;
}

}  // namespace

TEST_CASE("plan: the network takes as long as the bytes that a rank sends, at a sum's speed") {
    JobTiming timing = four_ranks();
    const auto seconds = [&](int ranks, const Way& way) {
        return forecast(timing, way, 80, std::vector<double>(size_t(ranks), 1)).network_seconds;
    };
    CHECK(seconds(1, kFp32) == 0);
    CHECK(seconds(4, kFp32) == Approx(0.12));
    CHECK(seconds(4, kWays[1]) == Approx(0.06));
    CHECK(seconds(3, kFp32) == Approx(0.32 / 3));
    timing.sent_bytes[4] = 2e6;  // of factors; averages are of all weights
    CHECK(seconds(4, kFp32) == Approx(0.02));
    CHECK(seconds(4, kWays[2]) == Approx(0.12 / 20));
}

TEST_CASE("plan: forecasts of one, two and four ranks, by hand") {
    JobTiming timing = four_ranks();
    timing.ranks[0].alone = 800;  // of shared processors
    using Shares = std::vector<double>;
    const struct {
        Shares shares;
        const Way& way;
        double seconds, speed;  // the second without a network
    } cases[] = {
        {{1}, kFp32, 0.1, 800},                        // 80 images
        {{1, 1, 1, 1}, kFp32, 0.05 / 3 + 0.12, 1600},  // two thirds of 50 ms hide the sums
        {{1, 1}, kFp32, 0.1 + 0.04, 800},              // the last half of 80 ms is not hidden
        {{3, 1}, kFp32, 0.15 + 0.04, 800},             // the larger share decides
        {{1, 1}, kWays[2], 0.1 + 0.08 / 20, 800},
    };
    for (const auto& [shares, way, seconds, speed] : cases) {
        const Forecast step = forecast(timing, way, 80, shares);
        CAPTURE(step.ranks);
        CHECK(step.step_seconds == Approx(seconds));
        CHECK(step.images_per_second == Approx(80 / seconds));
        CHECK(step.efficiency == Approx(80 / seconds / speed));
    }
    timing.ranks[1].together = 100;
    CHECK(fair_shares(timing, 3) == Shares{1, 0.25, 1});
    CHECK(join_text(fair_shares(timing, 2), ":") == "1:0.25");
}

TEST_CASE("plan: the bucket grows with latency and bandwidth, between 1 and 25 MB") {
    const auto bucket = [](double latency, double speed) {
        return bucket_bytes_for(std::vector<LinkTiming>{{0, 1, latency, speed}}, 4);
    };
    CHECK(bucket(1e-4, 1e7) == 1 << 20);
    CHECK(bucket(1e-2, 1e9) == 25 << 20);
    CHECK(bucket_bytes_for(
              std::vector<LinkTiming>{{0, 1, 1e-4, 9e9}, {1, 2, 1e-5, 5e8}, {2, 3, 1e-6, 6e8}},
              4) == 5'000'000);             // the least bandwidth, and the largest latency
    CHECK(bucket(1e-4, 5e8) == 5'000'000);  // 2·3·0.1 ms are 4 % of 1.5 · 5 MB at 5e8
    CHECK(bucket_bytes_for({}, 2) == 1 << 20);
}

TEST_CASE("plan: a slow link is named once, where ranks wait for it, and none within a machine") {
    JobTiming timing = four_ranks();
    const std::vector<double> equal = {1, 1, 1, 1};
    const auto warnings = [&] { return plan_warnings(timing, {}, 80, equal); };
    const auto names = [](const std::string& text, const std::string& what) {
        return contains(text, what);
    };
    CHECK(warnings().empty());
    timing.links[4].bytes_per_second = 1e7;  // from 2 to 3 alone
    REQUIRE(warnings().size() == 1);
    for (const char* part : {"rank 2", "rank 3", "80 Mbit/s"}) CHECK(names(warnings()[0], part));
    // Where the gradients are small nobody waits for the link.
    timing.sent_bytes[4] = 1e4, timing.gradient_bytes = 1e4;
    CHECK(warnings().empty());
    timing.sent_bytes[4] = 12e6, timing.gradient_bytes = 8e6;
    for (LinkTiming& one : timing.links)
        if (one.from == 2 || one.to == 2) one.bytes_per_second = 1e7;
    REQUIRE(warnings().size() == 1);
    CHECK(names(warnings()[0], "rank 2"));
    CHECK_FALSE(names(warnings()[0], "rank 3"));
    // Links within a machine: loopback and shared memory.
    for (RankTiming& rank : timing.ranks) rank.machine = "a";
    CHECK(warnings().empty());

    timing = four_ranks();
    timing.ranks[3].together = 150;
    REQUIRE(warnings().size() == 1);
    for (const char* part : {"rank 3", "--share auto"}) CHECK(names(warnings()[0], part));
}

// ---- the command ------------------------------------------------------------------------------

// What rank 0 of two prints; both end with this status.
static std::string two_ranks(const Words& both, const Words& more, int status = 0) {
    TempDir folder;
    const Words others = both + Words{"--threads", "1"};
    return Cluster(folder, 2, others + more, others).end(status);
}

TEST_CASE("program: plan times two ranks, and says what one and two would reach") {
    const std::string output =
        two_ranks({"tune", "--plan"}, typed("--json --size 16 --batch 8 --share auto"));
    CAPTURE(output);
    int links = 0, ranks = 0, best = 0;
    std::vector<std::tuple<int, std::string, int>> predictions;
    for (const json& line : json_lines(output)) {
        links += line["plan"] == "link";
        ranks += line["plan"] == "rank";
        if (line["plan"] == "link") continue;
        CHECK(line["images_per_second"] > 0);
        if (line["plan"] != "prediction") continue;
        predictions.emplace_back(line["ranks"], line["wire"], line["steps_per_sum"]);
        CHECK(line["efficiency"] > 0);
        best += line["best"].get<bool>();
    }
    CHECK(links == 2);
    CHECK(ranks == 2);
    CHECK(best == 1);
    using Row = std::tuple<int, std::string, int>;
    CHECK(predictions == std::vector<Row>{Row{1, "fp32", 1}, Row{2, "fp32", 1}, Row{2, "bf16", 1},
                                          Row{2, "fp32", 20}});
}

TEST_CASE("program: with --compute, gradients from factors sleep for the images of all ranks") {
    TempDir folder;
    const std::string model = (folder.path() / "model.txt").string();
    std::ofstream(model) << "input 8\nflatten\nlinear a out 350\nlinear b out classes\n";
    // Of S = 0.3 s half is forward, and half dw of one of two ranks: 3/2 S.
    const std::string output =
        two_ranks({"bench", "train"}, {"--json", "--model", model, "--batch", "8", "--compute",
                                       "0.3", "--shm", "off", "--steps", "3"});
    CAPTURE(output);
    REQUIRE(!json_lines(output).empty());
    const json last = json_lines(output).back();
    CHECK(last["images_per_second"] < 1.03 * 8 / 0.45);
    CHECK(last["images_per_second"] > 0.6 * 8 / 0.45);
}

TEST_CASE("program: plan alone prints a table; what it refuses") {
    CHECK(contains(output_of(typed("tune --plan --size 16 --batch 8 --threads 1")), "--world 1"));
    CHECK(contains(output_of({"tune", "--plan", "--model", "resnet19"}, 1), "resnet18"));
    for (const Words& words : {Words{"--world", "2"}, {"--epochs", "3"}, {"--sync", "average:8"}})
        CHECK_FAILS(check_command_line(parse_command_line(Words{"tune", "--plan"} + words, {})),
                    words[0]);
}

TEST_CASE("program: the start of a run of two ranks names the slowest link; shares by speed") {
    TempDir folder;
    const std::string output =
        two_ranks({}, {"--generated", "48", "--size", "16", "--batch", "8", "--epochs", "1",
                       "--share", "auto", "--out", folder / "run", "CONVOY_FACTORS=on"});
    CAPTURE(output);
    CHECK(contains(output, " MB factors of all ranks"));
    CHECK(contains(output, "slowest link: rank "));
    const std::string refused = two_ranks(
        {}, {"--generated", "48", "--share", "auto", "CONVOY_PREFLIGHT=off"}, /*status=*/1);
    for (const char* name : {"--share auto", "CONVOY_PREFLIGHT"}) CHECK(contains(refused, name));
}

TEST_CASE("shares: rank 0 decides for all, and every rank says what does not fit") {
    const struct {
        const char *rank0, *rank1, *message;  // "": no error
        std::vector<double> weights;
    } cases[] = {
        {"", "", "", {1, 1}},
        {"2", "0.5", "", {2, 0.5}},
        {"auto", "3", "", {1, 1}},
        {"1:0", "", "", {1, 0}},
        {"", "auto", "rank 1 says --share auto, rank 0 does not", {}},
        {"", "1:2", "rank 1 says --share 1:2, rank 0 does not", {}},
        {"1:2:3", "", "3 weights for a world of 2", {}},
    };
    for (const auto& [rank0, rank1, message, weights] : cases)
        run_ranks(
            2, [](JoinOptions&) {},
            [&, rank0, rank1, message, weights](Job& job) {
                Log log(stderr);
                log.set_quiet(true);
                const char* mine = job.communicator->rank() == 0 ? rank0 : rank1;
                if (*message) {
                    CHECK_FAILS(gather_shares(*job.communicator, mine, log), message);
                } else {
                    const Shares shares = gather_shares(*job.communicator, mine, log);
                    CHECK(shares.weights == weights);
                    CHECK(shares.fair == (std::string(rank0) == "auto"));
                }
            });
}
