// Ways to train, and the speed of real runs.
#include <doctest/doctest.h>

#include <fstream>
#include <set>

#include "src/cli/commands.h"
#include "src/plan/tune.h"
#include "tests/jobs.h"

using namespace convoy;

TEST_CASE("a run's speed is that of its steps after the first, by time and not by line") {
    TempDir folder;
    const std::string path = folder / "log.jsonl";
    std::ofstream(path) << R"({"event":"start"}
{"event":"step","images":64,"images_per_second":1,"net_wait":1}
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

TEST_CASE("trials of a machine: one core first, never more threads than cores, no two alike") {
    // All can be given to train; none to tune, except the number of cores.
    const auto check_options = [](const Trial& trial) {
        for (const auto& [name, value] : trial.options) {
            REQUIRE(find_option(name));
            CHECK(row_of(kTrain).takes(*find_option(name)));
            CHECK(row_of(kTune).takes(*find_option(name)) == (name == "threads"));
            Config config;
            CHECK_NOTHROW(set_option(config, name, value));
        }
    };
    for (const int cores : {1, 2, 6, 64})
        for (const int gpus : {0, 1, 4}) {
            const std::vector<Trial> trials = local_trials(cores, gpus);
            CHECK(trials[0].options.at("threads") == "1");
            CHECK(trials[0].ranks == 1);
            std::set<std::pair<int, std::map<std::string, std::string>>> all;
            std::set<std::string> names;
            bool all_cores = false;
            for (const Trial& one : trials) {
                INFO(cores, " cores: ", one.text());
                CHECK(names.insert(one.text()).second);
                CHECK(all.emplace(one.ranks, one.options).second);
                check_options(one);
                if (!one.options.contains("threads")) continue;
                const int threads = std::stoi(one.options.at("threads"));
                CHECK(one.ranks * threads <= cores);
                all_cores |= one.ranks == 1 && threads == cores;
            }
            CHECK(all_cores);
        }
    const Trial local{{{"threads", "2x3"}, {"accumulate", "2"}, {"device", "cpu"}}};
    for (const int world : {2, 3, 4})
        for (const Trial& one : join_trials(world, local)) {
            INFO(one.text());
            CHECK(one.ranks == 1);
            check_options(one);
            // A pipeline cuts the batch itself.
            const bool is_cut = contains(one.text(), "pipeline");
            CHECK(one.options.contains("threads") != is_cut);
            CHECK(one.options.contains("accumulate") != is_cut);
            CHECK(one.options.at("device") == "cpu");
        }
    CHECK(join_trials(4, {}).size() == join_trials(3, {}).size() + 1);  // 2 pipelines of 2
}

TEST_CASE("program: tune measures rank 0's model on a rank whose user gives no option") {
    TempDir folder;
    const Words both =
        typed("tune --minutes=0.01 --threads=1 --verbose") + Words{"--out=" + folder / "best"};
    Cluster ranks(folder, 2, both + typed("--model=squeezenet1_1 --size=32 --batch=4"), both);
    ranks.end();
    for (const auto& rank : ranks.all) {
        const std::string output = rank->output();
        CAPTURE(output);
        CHECK(contains(output, "model squeezenet1_1, size 32, batch 4"));
    }
}

TEST_CASE("program: tune measures until its minutes are over, and train takes what it wrote") {
    TempDir folder;
    const std::string file = folder / "best.settings";
    const std::string text = output_of(
        typed("tune --model=tiny --batch=8 --size=16 --minutes=0.01") + Words{"--out=" + file});
    CHECK(contains(text, "--decode-threads 1 --threads 1"));
    CHECK(contains(text, "--minutes are over"));
    const std::string settings = read_file(file);
    CHECK(contains(settings, "\nbatch 8\n"));
    CHECK(contains(settings, "\nthreads 1\n"));
    // Not what holds for generated images only.
    CHECK(!contains(settings, "augment"));

    output_of({"--settings=" + file, "--steps=1", "--generated=48", "--batch=4", "--out",
               folder / "run"});  // the command line wins over the file
    CHECK(contains(read_file(folder / "run/log.jsonl"), "\"batch\":\"4\""));
}

TEST_CASE("tune and --settings name the option, the file and the line that do not fit") {
    TempDir folder;
    const std::string file = folder / "s";
    const auto says = [](const std::vector<std::string>& words, const std::string& what) {
        CHECK_FAILS(parse_command_line(words, {}), what);
    };
    says({"tune", "--wire=bf16"}, "--wire");
    says({"tune", "--steps=9"}, "--steps");
    says({"--settings", folder / "none"}, folder / "none");
    for (const auto& [text, what] : {std::pair("# a comment\n\nbatch\n", "'batch'"),
                                     {"bathc 8\n", "'bathc 8'"},
                                     {"batch eight\r\n", ": batch cannot be 'eight'"},
                                     {"settings other\n", "'settings other'"},
                                     {"flip off\n", "--augment"}}) {
        std::ofstream(file) << text;
        says({"--settings", file}, what);
    }
    CHECK(contains(output_of({"tune", "--model=nothing", "--out", folder / "x"}, 1), "'nothing'"));
}
