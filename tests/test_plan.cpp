// Forecasts: the formula against cases done by hand, the order of ranks and warnings, and the
// command as a process.
#include "src/plan/plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/base/text.h"
#include "src/plan/measure_job.h"
#include "tests/process.h"

using namespace convoy;
using doctest::Approx;
using nlohmann::json;

namespace {

constexpr const Way& kFp32 = kWays[0];

// Four ranks on machines of their own; a step takes 3 ms an image and 10 ms more. Gradients of 8 MB
// in buckets of 4, of which each rank sends 100 MB a second.
JobTiming four_ranks() {
    JobTiming timing;
    for (int rank = 0; rank < 4; ++rank) {
        const std::vector<StepTime> times = {{10, 0.040}, {20, 0.070}};
        timing.ranks.push_back({cat("machine", rank), 2, {}, times});
        timing.edges.push_back({rank, (rank + 1) % 4, 1e-4, 1e8});
        timing.edges.push_back({(rank + 1) % 4, rank, 1e-4, 1e8});
    }
    timing.bucket_bytes = 4'000'000;
    timing.bytes_per_second = 1e8;
    timing.gradient_bytes = 8e6;
    timing.sent_bytes = {0, 0, 8e6, 32e6 / 3, 12e6};
    return timing;
}

double step_of(const JobTiming& timing, const std::vector<double>& shares, int64_t batch = 80,
               const Way& way = kFp32) {
    return forecast(timing, way, batch, shares).step_seconds;
}

}  // namespace

TEST_CASE("plan: the network takes as long as the bytes that a rank sends, at a sum's speed") {
    JobTiming timing = four_ranks();
    CHECK(network_seconds(timing, 1, kFp32) == 0);
    CHECK(network_seconds(timing, 4, kFp32) == Approx(0.12));
    CHECK(network_seconds(timing, 4, kWays[1]) == Approx(0.06));
    CHECK(network_seconds(timing, 3, kFp32) == Approx(0.32 / 3));
    timing.sent_bytes[4] = 2e6;  // of factors; averages are of all weights
    CHECK(network_seconds(timing, 4, kFp32) == Approx(0.02));
    CHECK(network_seconds(timing, 4, kWays[2]) == Approx(0.12 / 20));
}

TEST_CASE("plan: forecasts of one, two and four ranks, by hand") {
    JobTiming timing = four_ranks();
    CHECK(step_of(timing, {1}) == Approx(0.250));  // 80 images
    CHECK(forecast(timing, kFp32, 80, std::vector<double>{1}).efficiency == Approx(1));
    // 20 images a rank: 70 ms, of which two thirds hide a part of the network's 120.
    CHECK(step_of(timing, {1, 1, 1, 1}) == Approx(0.070 / 3 + 0.120));
    CHECK(forecast(timing, kFp32, 80, std::vector<double>(4, 1)).efficiency ==
          Approx(0.070 / (0.070 / 3 + 0.120)));
    // 40 images a rank: 130 ms and 80 on the network, of which the last half is not hidden.
    CHECK(step_of(timing, {1, 1}) == Approx(0.130 + 0.040));
    CHECK(step_of(timing, {3, 1}) == Approx(0.190 + 0.040));  // the larger share decides
    CHECK(step_of(timing, {1, 1}, 80, kWays[2]) == Approx(0.130 + 0.080 / 20));
    // Real steps that took longer scale the forecasts for several ranks, never below the compute.
    timing.contention = 1.5;
    CHECK(step_of(timing, {1, 1}) == Approx(1.5 * 0.170));
    CHECK(step_of(timing, {1}) == Approx(0.250));
    timing.contention = 0.1;
    CHECK(step_of(timing, {1, 1}) == Approx(0.130));
}

TEST_CASE("plan: one rank is timed alone, several while all compute") {
    JobTiming timing = four_ranks();
    timing.bytes_per_second = 1e15;
    timing.ranks[0].alone = {{10, 0.010}, {20, 0.020}};
    CHECK(step_of(timing, {1}) == Approx(0.080));
    CHECK(step_of(timing, {1, 1}) == Approx(0.130));
    const std::vector<double> speeds = compute_speeds(timing, 80, std::vector<double>(4, 1));
    CHECK(speeds[0] == Approx(20 / 0.070));
    CHECK(speeds.size() == 4);
}

TEST_CASE("plan: step times lie on a line through two, or through the origin") {
    const std::vector<StepTime> two = {{10, 0.03}, {20, 0.05}};
    CHECK(seconds_at(two, 15) == Approx(0.04));
    CHECK(seconds_at(two, 40) == Approx(0.09));
    CHECK(seconds_at(two, 5) == Approx(0.02));
    const std::vector<StepTime> falls = {{10, 0.06}, {20, 0.05}}, steep = {{10, 0.01}, {20, 0.04}};
    CHECK(seconds_at(falls, 40) == Approx(0.06));
    CHECK(seconds_at(steep, 5) == Approx(0.005));
    CHECK(seconds_at(steep, 40) == Approx(0.10));
    const std::vector<StepTime> one = {{10, 0.03}};
    CHECK(seconds_at(one, 5) == Approx(0.015));
    CHECK(seconds_at(one, 0) == 0);
}

TEST_CASE("plan: fair shares end at the same time") {
    JobTiming timing;
    const auto shares = [&](const std::vector<StepTime>& first,
                            const std::vector<StepTime>& second) {
        timing.ranks = {{"a", 1, first, first}, {"b", 1, second, second}};
        return fair_shares(timing, 2, 100);
    };
    // 1 ms and 4 ms an image, nothing fixed: four times as many.
    CHECK(shares({{10, 0.010}, {20, 0.020}}, {{10, 0.04}, {20, 0.08}}) ==
          std::vector<double>{1, 0.25});
    // 10 ms fixed on both, then 1 and 2 ms an image: 100 images in 10 + 66.7 ms.
    CHECK(shares({{10, 0.02}, {20, 0.03}}, {{10, 0.03}, {20, 0.05}}) ==
          std::vector<double>{1, 0.5});
    CHECK(shares_text(fair_shares(timing, 2, 100)) == "1:0.5");
    // A rank that needs longer for one image than the other for all.
    CHECK(shares({{10, 0.01}, {20, 0.02}}, {{10, 0.51}, {20, 0.52}}) == std::vector<double>{1, 0});
}

TEST_CASE("plan: the bucket grows with latency and bandwidth, between 1 and 25 MB") {
    const auto bucket = [](double latency, double speed) {
        return bucket_bytes_for(std::vector<EdgeTiming>{{0, 1, latency, speed}}, 4);
    };
    CHECK(bucket(1e-4, 1e7) == 1 << 20);
    CHECK(bucket(1e-2, 1e9) == 25 << 20);
    CHECK(bucket(1e-4, 5e8) == 5'000'000);  // 2·3·0.1 ms are 4 % of 1.5 · 5 MB at 5e8
    CHECK(bucket_bytes_for({}, 2) == 1 << 20);
}

TEST_CASE("plan: a slow link is named once, where ranks wait for it, and none within a machine") {
    JobTiming timing = four_ranks();
    const std::vector<double> equal = {1, 1, 1, 1};
    const auto warnings = [&] { return plan_warnings(timing, {}, 80, equal); };
    const auto names = [](const std::string& text, const std::string& what) {
        return text.find(what) != text.npos;
    };
    CHECK(warnings().empty());
    timing.edges[4].bytes_per_second = 1e7;  // from 2 to 3 alone
    REQUIRE(warnings().size() == 1);
    for (const char* part : {"rank 2", "rank 3", " 80 Mbit/s"}) CHECK(names(warnings()[0], part));
    // Where the gradients are small nobody waits for the link.
    timing.sent_bytes[4] = 1e4, timing.gradient_bytes = 1e4;
    CHECK(warnings().empty());
    timing.sent_bytes[4] = 12e6, timing.gradient_bytes = 8e6;
    for (EdgeTiming& one : timing.edges)
        if (one.from == 2 || one.to == 2) one.bytes_per_second = 1e7;
    REQUIRE(warnings().size() == 1);
    CHECK(names(warnings()[0], "rank 2"));
    CHECK_FALSE(names(warnings()[0], "rank 3"));
    // Links within a machine: loopback and shared memory.
    for (RankTiming& rank : timing.ranks) rank.machine = "a";
    CHECK(warnings().empty());

    timing = four_ranks();
    timing.ranks[3].together = {{10, 0.130}, {20, 0.210}};
    REQUIRE(warnings().size() == 1);
    for (const char* part : {"rank 3", "--share auto"}) CHECK(names(warnings()[0], part));
}

// ---- the command ------------------------------------------------------------------------------

using Words = std::vector<std::string>;

static std::vector<json> plan_lines(const std::string& output) {
    std::vector<json> lines;
    for (const std::string& line : split(output, '\n'))
        if (line.starts_with("{")) lines.push_back(json::parse(line));
    return lines;
}

// What rank 0 of a plan for two ranks prints.
static std::string plan_of_two(const Words& more) {
    TempDir folder;
    const std::string at = cat("127.0.0.1:", free_port());
    Words words = {"tune",      "--plan", "--coord", at,       "--rank", "0",       "--world", "2",
                   "--threads", "1",      "--json",  "--size", "16",     "--batch", "8"};
    words.insert(words.end(), more.begin(), more.end());
    Process rank1(folder, "rank1",
                  {"tune", "--plan", "--coord", at, "--rank", "1", "--threads", "1"});
    Process rank0(folder, "rank0", words);
    CHECK(rank0.wait() == 0);
    CHECK(rank1.wait() == 0);
    return rank0.output();
}

TEST_CASE("program: plan times two ranks, and says what one and two would reach") {
    const std::string output = plan_of_two({"--share", "auto"});
    CAPTURE(output);
    int edges = 0, ranks = 0, best = 0;
    std::vector<std::tuple<int, std::string, int, bool>> predictions;
    double measured = 0;
    for (const json& line : plan_lines(output)) {
        edges += line["plan"] == "edge";
        ranks += line["plan"] == "rank";
        if (line["plan"] == "edge") continue;
        CHECK(line["images_per_second"] > 0);
        if (line["plan"] != "prediction") continue;
        predictions.emplace_back(line["ranks"], line["wire"], line["steps_per_sum"],
                                 line["measured"]);
        CHECK(line["efficiency"] > 0);
        best += line["best"].get<bool>();
        if (line["ranks"] == 2 && line["measured"].get<bool>()) measured = line["step_ms"];
    }
    CHECK(edges == 2);
    CHECK(ranks == 2);
    CHECK(best == 1);
    CHECK(measured > 0);
    using Row = std::tuple<int, std::string, int, bool>;
    CHECK(predictions == std::vector<Row>{Row{1, "fp32", 1, true}, Row{2, "fp32", 1, true},
                                          Row{2, "bf16", 1, false}, Row{2, "fp32", 20, false}});
}

TEST_CASE("program: with --compute, gradients from factors sleep for the images of all ranks") {
    TempDir folder;
    const std::string model = (folder.path() / "model.txt").string();
    std::ofstream(model) << "input 8\nflatten\nlinear a out 350\nlinear b out classes\n";
    // Of S = 0.3 s a third is forward, a third dx, and a third dw of one of two ranks: 4/3 S.
    const std::string at = cat("127.0.0.1:", free_port());
    const Words words = {"bench", "train", "--coord", at, "--threads", "1"};
    Words first = words;
    for (const std::string word :
         {"--rank", "0", "--world", "2", "--json", "--model", model.c_str(), "--batch", "8",
          "--compute", "0.3", "--shm", "off", "--steps", "3"})
        first.push_back(word);
    Process rank1(folder, "rank1", words);
    Process rank0(folder, "rank0", first);
    CHECK(rank0.wait() == 0);
    CHECK(rank1.wait() == 0);
    const std::string output = rank0.output();
    CAPTURE(output);
    REQUIRE(!plan_lines(output).empty());
    const json last = plan_lines(output).back();
    CHECK(last["images_per_second"] < 1.03 * 8 / 0.4);
    CHECK(last["images_per_second"] > 0.6 * 8 / 0.4);
}

TEST_CASE("program: plan alone, and what it refuses") {
    const auto [status, output] =
        run_trainer({"tune", "--plan", "--size", "16", "--batch", "8", "--threads", "1"});
    CAPTURE(output);
    CHECK(status == 0);
    CHECK(output.find("compute img/s") != std::string::npos);
    CHECK(output.find("--world 1") != std::string::npos);
    const struct {
        Words words;
        const char* message;
    } cases[] = {
        {{"tune", "--plan", "--world", "2"}, "--coord"},
        {{"tune", "--plan", "somewhere"}, "'somewhere'"},
        {{"tune", "--plan", "--model", "resnet19"}, "resnet18"},
        {{"tune", "--plan", "--share", "-1"}, "negative"},
        {{"tune", "--plan", "--classes", "0"}, "--classes cannot be 0"},
        {{"tune", "--plan", "--epochs", "3"}, "--epochs"},
        {{"tune", "--plan", "--sync", "average:8"}, "--sync"},
        {{"CONVOY_PREFLIGHT=perhaps"}, "CONVOY_PREFLIGHT"},
    };
    for (const auto& [words, message] : cases) {
        const auto [bad, said] = run_trainer(words);
        CAPTURE(said);
        CHECK(bad == 1);
        CHECK(said.find(message) != std::string::npos);
    }
}

TEST_CASE("program: the start of a run of two ranks says what to expect; shares by speed") {
    TempDir folder;
    const std::string at = cat("127.0.0.1:", free_port());
    Process rank1(folder, "rank1",
                  {"--coord", at, "--rank", "1", "--threads", "1", "--share", "3"});
    Process rank0(folder, "rank0", {"--coord",          at,     "--rank",    "0",
                                    "--world",          "2",    "--threads", "1",
                                    "--generated",      "48",   "--size",    "16",
                                    "--batch",          "8",    "--epochs",  "1",
                                    "--share",          "auto", "--out",     folder / "run",
                                    "CONVOY_FACTORS=on"});
    CHECK(rank0.wait() == 0);
    CHECK(rank1.wait() == 0);
    const std::string output = rank0.output();
    CAPTURE(output);
    CHECK(rank1.output().find("--share 3 has no effect: rank 0 says --share auto") !=
          std::string::npos);
    CHECK(output.find(" MB factors of all ranks") != std::string::npos);
    CHECK(output.find("slowest link: rank ") != std::string::npos);
    CHECK(output.find("buckets of ") != std::string::npos);
    CHECK(output.find("img/s") > output.find("epoch 1/1"));  // no forecast
    // What was decided for this run is not an option of the next one.
    const json meta = json::parse(read_file(folder / "run/latest/meta.json"));
    CHECK(meta["options"]["bucket"] == "auto");
}

TEST_CASE("program: shares by speed need the measuring, and are rank 0's to ask for") {
    const struct {
        Words rank0, rank1;
        const char* message;
    } cases[] = {
        {{"--share", "auto", "CONVOY_PREFLIGHT=off"}, {}, "CONVOY_PREFLIGHT=off"},
        {{}, {"--share", "auto"}, "rank 1 says --share auto, rank 0 does not"},
        {{}, {"--share", "1:2"}, "rank 1 says --share 1:2, rank 0 does not"},
        {{"--share", "1:2:3"}, {}, "3 weights for a world of 2"},
    };
    for (const auto& [more0, more1, message] : cases) {
        TempDir folder;
        const std::string at = cat("127.0.0.1:", free_port());
        Words words1 = {"--coord", at, "--rank", "1", "--threads", "1"};
        Words words0 = {"--coord",     at,   "--rank",  "0",           "--world", "2",
                        "--generated", "48", "--batch", "8",           "--size",  "16",
                        "--threads",   "1",  "--out",   folder / "run"};
        words0.insert(words0.end(), more0.begin(), more0.end());
        words1.insert(words1.end(), more1.begin(), more1.end());
        Process rank1(folder, "rank1", words1), rank0(folder, "rank0", words0);
        CHECK(rank0.wait() == 1);
        CHECK(rank1.wait() == 1);
        CAPTURE(rank0.output());
        CHECK(rank0.output().find(message) != std::string::npos);
    }
}
