// Ways to train, and the speed of real runs.
#include <doctest/doctest.h>

#include <fstream>
#include <set>

#include "src/cli/commands.h"
#include "src/plan/tune.h"
#include "tests/process.h"

using namespace convoy;

TEST_CASE("a run's speed is that of its steps after the second, by time and not by line") {
    TempDir folder;
    const std::string path = folder / "log.jsonl";
    std::ofstream(path) << R"({"event":"start"}
{"event":"step","images":64,"images_per_second":1,"net_wait":1}
{"event":"step","images":64,"images_per_second":2,"net_wait":1}
{"event":"step","images":60,"images_per_second":30,"net_wait":0.5,"net_busy":1}
half a line {"event":
{"event":"val","images":1000,"images_per_second":1}
{"event":"step","images":60,"images_per_second":60,"net_wait":0.2,"net_busy":0.4}
{"event":"step","images":60,"images_per_second":0}
{"event":"step"})";
    const Speed speed = speed_of_log(path);
    CHECK(speed.seconds == doctest::Approx(3));  // 60/30 + 60/60
    CHECK(speed.images_per_second == doctest::Approx(40));
    CHECK(speed.net_wait == doctest::Approx((2 * 0.5 + 1 * 0.2) / 3));
    CHECK(speed.net_busy == doctest::Approx((2 * 1.0 + 1 * 0.4) / 3));
    CHECK(speed_of_log(folder / "none").images_per_second == 0);
    CHECK(speed_of_log(folder / "none").seconds == 0);
}

TEST_CASE("setups of a machine: one core first, never more threads than cores, no two alike") {
    for (const int cores : {1, 2, 6, 64})
        for (const int gpus : {0, 1, 4}) {
            const std::vector<Setup> setups = local_setups(cores, gpus);
            CHECK(setups[0].name == "1 core");
            std::set<std::pair<int, std::map<std::string, std::string>>> all;
            std::set<std::string> names;
            bool all_cores = false;
            for (const Setup& one : setups) {
                INFO(cores, " cores: ", one.name);
                CHECK(names.insert(one.name).second);
                CHECK(all.emplace(one.ranks, one.options).second);
                for (const auto& [name, value] : one.options) CHECK(is_tuned(name));
                if (!one.options.contains("threads")) continue;
                const int threads = std::stoi(one.options.at("threads"));
                CHECK(one.ranks * threads <= cores);
                all_cores |= one.ranks == 1 && threads == cores;
            }
            CHECK(all_cores);
        }
    for (const int world : {2, 3, 4})
        for (const Setup& one : join_setups(world)) {
            CHECK(one.ranks == 1);
            for (const auto& [name, value] : one.options) CHECK(is_tuned(name));
        }
    CHECK(join_setups(4).size() == join_setups(3).size() + 1);  // 2 pipelines of 2
}

TEST_CASE("a setup in pieces is tried where each piece has a group of batch norm") {
    const Setup two{"", 1, {{"replicas", "2"}}}, four{"", 1, {{"accumulate", "4"}}};
    CHECK(is_cut_as_asked({"", 1, {{"threads", "2"}}}, 1, 32));
    CHECK(is_cut_as_asked(two, 64, 32));
    CHECK(is_cut_as_asked(two, 33, 32));
    CHECK(!is_cut_as_asked(two, 32, 32));  // one group, so one replica
    CHECK(is_cut_as_asked(two, 32, 0));
    CHECK(!is_cut_as_asked(four, 96, 32));
    CHECK(is_cut_as_asked(four, 97, 32));
    CHECK(!is_cut_as_asked(two, 1, 0));
}

TEST_CASE("program: tune measures rank 0's model on a rank whose user gives no option") {
    TempDir folder;
    const std::string port = cat("--coord=127.0.0.1:", free_port());
    Process rank0(folder, "rank0",
                  {"tune", port, "--rank=0", "--world=2", "--model=squeezenet1_1", "--size=32",
                   "--batch=4", "--minutes=0.01", "--threads=1", "--out=" + folder / "best"});
    Process rank1(
        folder, "rank1",
        {"tune", port, "--rank=1", "--minutes=0.01", "--threads=1", "--out=" + folder / "best"});
    CHECK(rank0.wait() == 0);
    CHECK(rank1.wait() == 0);
    CAPTURE(rank0.output());
    for (const char* name : {"best.jsonl", "best.rank1.jsonl"}) {
        const std::string measured = read_file(folder / name);
        CAPTURE(measured);
        for (const char* word : {"--model=squeezenet1_1", "--size=32 ", "--batch=4"})
            CHECK(measured.find(word) != measured.npos);
    }
}

TEST_CASE("a race is won by the fastest setup that is exact; what is clearly slower ends early") {
    // What would be measured, and for how long; setup 5's first second flatters it.
    const auto winner_of = [](int count, std::vector<double>& seconds) {
        std::vector<Tried> all;
        for (int i = 0; i < count; ++i) all.push_back({{cat(i), 1, {}, i != 6}});
        seconds.assign(size_t(count), 0);
        const Tried* best = race(all, [&](Tried& one, double wanted) {
            const int i = std::stoi(one.setup.name);
            one.speed.seconds = wanted,
            one.speed.images_per_second = i == 5 && wanted > 1 ? 2.5 : i;
            if (i == 7) one.speed.fault = "it ended";
            seconds[size_t(i)] = wanted;
        });
        return best ? int(best - all.data()) : -1;
    };
    std::vector<double> seconds;
    CHECK(winner_of(8, seconds) == 4);
    CHECK(seconds == std::vector<double>{1, 1, 1, 1, 3, 3, 1, 1});
    CHECK(winner_of(2, seconds) == 1);
    CHECK(seconds == std::vector<double>{3, 3});
    CHECK(winner_of(1, seconds) == 0);
    CHECK(winner_of(0, seconds) == -1);
    CHECK(winner_of(100, seconds) == 99);
    for (const auto& [wanted, count] : {std::pair(1, 67), {3, 22}, {9, 11}})
        CHECK(std::ranges::count(seconds, wanted) == count);
}

TEST_CASE("measured speeds are found again, beside damaged lines of the file") {
    TempDir folder;
    const std::string path = folder / "speeds";
    std::ofstream(path) << "{\"key\":5}\nnothing\n{\"key\":\"empty\"}\n"
                        << "{\"key\":\"x\",\"images_per_second\":\"many\"}\n";
    {
        TuneRecords records(path);
        for (const char* key : {"x", "empty", "a"}) CHECK(records.find(key) == nullptr);
        records.add("a", {3, 12.5, 0.25, 0.5, 1.5, 300, ""});
    }
    const TuneRecords records(path);
    const Speed* speed = records.find("a");
    REQUIRE(speed);
    CHECK(speed->seconds == 3);
    CHECK(speed->images_per_second == 12.5);
    CHECK(speed->net_wait == 0.25);
    CHECK(speed->net_busy == 0.5);
    CHECK(speed->cores == 1.5);
    CHECK(speed->memory_megabytes == 300);
    CHECK_THROWS_WITH_AS(TuneRecords("/proc/none/x").add("a", {}),
                         doctest::Contains("cannot write /proc/none/x"), Error);
}

TEST_CASE(
    "program: tune measures until its minutes are over, goes on later, and train takes what it "
    "wrote") {
    TempDir folder;
    const std::string file = folder / "best.settings";
    const std::vector<std::string> words = {"tune",      "--model=tiny",   "--batch=8",
                                            "--size=16", "--minutes=0.01", "--out=" + file};
    auto [status, text] = run_trainer(words);
    INFO(text);
    CHECK(status == 0);
    CHECK(text.find("1 core") != text.npos);
    CHECK(text.find("--minutes are over") != text.npos);
    const std::string settings = read_file(file);
    CHECK(settings.find("\nbatch 8\n") != settings.npos);
    CHECK(settings.find("\nthreads 1\n") != settings.npos);

    std::vector<std::string> again = words;
    again.push_back("--json");
    std::tie(status, text) = run_trainer(again);
    INFO(text);
    CHECK(status == 0);
    CHECK(text.find("\"note\":\"fastest\"") != text.npos);
    std::ifstream records(file + ".jsonl");
    CHECK(std::count(std::istreambuf_iterator<char>(records), {}, '\n') >= 1);

    std::tie(status, text) = run_trainer({"--settings=" + file, "--steps=1", "--generated=48",
                                          "--batch=4", "--out", folder / "run"});
    INFO(text);
    CHECK(status == 0);  // the command line wins over the file
    CHECK(read_file(folder / "run/log.jsonl").find("\"batch\":\"4\"") != text.npos);
}

TEST_CASE("program: a run that tune starts has no options of a launcher or of the environment") {
    const std::pair<const char*, const char*> variables[] = {
        {"CONVOY_MODEL", "tiny"}, {"CONVOY_STEPS", "1"}, {"RANK", "0"}, {"SLURM_PROCID", "0"}};
    for (const auto& [name, value] : variables) setenv(name, value, 1);
    const std::vector<std::string> environment = plain_environment();
    for (const auto& [name, value] : variables) unsetenv(name);
    for (const std::string& one : environment)
        for (const auto& [name, value] : variables) CHECK(!one.starts_with(cat(name, "=")));
    CHECK(std::ranges::count(environment, cat("PATH=", std::getenv("PATH"))) == 1);
}

TEST_CASE("program: tune and --settings say what is wrong with what they are given") {
    TempDir folder;
    const auto says = [](const std::vector<std::string>& words, const std::string& what) {
        const auto [status, text] = run_trainer(words);
        INFO(text);
        CHECK(status == 1);
        CHECK(text.find(what) != text.npos);
    };
    says({"tune", "--wire=bf16"}, "`tune` has no option --wire");
    says({"tune", "--steps=9"}, "`tune` has no option --steps");
    says({"tune", "--model=nothing", "--out", folder / "x"}, "model 'nothing'");
    says({"--settings", folder / "none"}, "No such file");
    const std::string file = folder / "s";
    std::ofstream(file) << "# a comment\n\nbatch\n";
    says({"--settings", file}, "'batch' is not an option and its value");
    std::ofstream(file) << "bathc 8\n";
    says({"--settings", file}, "'bathc 8' is not an option and its value");
    std::ofstream(file) << "batch eight\r\n";
    says({"--settings", file}, file + ": --batch cannot be 'eight'");
    std::ofstream(file) << "settings other\n";
    says({"--settings", file}, "'settings other' is not an option and its value");
}
