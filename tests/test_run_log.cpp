#include "src/run/run_log.h"

#include <csignal>
#include <nlohmann/json.hpp>

#include "src/base/text.h"
#include "src/run/usage.h"
#include "tests/process.h"

using namespace convoy;

namespace {

struct Events {
    TempDir folder;
    const std::string run = folder / "run", path = run + "/log.jsonl";
    Quiet quiet;
    Log& log = quiet.log;

    Events() { std::filesystem::create_directory(run); }
    // The "n" of each line; -1 of one that is no event.
    std::vector<int> numbers() const {
        std::vector<int> all;
        for (const std::string& line : split(read_file(path), '\n')) {
            const auto event = nlohmann::json::parse(line, nullptr, false);
            if (!line.empty()) all.push_back(event.is_object() ? int(event["n"]) : -1);
        }
        return all;
    }
};

}  // namespace

TEST_CASE_FIXTURE(Events, "log.jsonl: what follows a line that was cut short begins another one") {
    for (const int n : {1, 2}) {
        RunLog(log, run, 0, 1, 3).event("one", {{"n", n}});
        std::ofstream(path, std::ios::app) << "{\"event\":\"cu";
    }
    RunLog(log, run, 0, 1, 3).event("one", {{"n", 3}});
    CHECK(numbers() == std::vector<int>{1, -1, 2, -1, 3});
}

TEST_CASE_FIXTURE(Events, "log.jsonl: after a full disk, or the loss of its folder, it goes on") {
    RunLog events(log, run, 0, 1, 3);
    // Longer than what is said, which the limit meets too.
    events.event("one", {{"n", 1}, {"text", std::string(1000, 'x')}});
    const auto old_handler = signal(SIGXFSZ, SIG_IGN);
    TightLimit limit(RLIMIT_FSIZE, rlim_t(std::filesystem::file_size(path)) + 10);
    for (const int n : {2, 3}) events.event("lost", {{"n", n}});
    limit.lift();
    signal(SIGXFSZ, old_handler);
    events.event("one", {{"n", 4}});
    CHECK(numbers() == std::vector<int>{1, -1, 4});
    CHECK(split(quiet.text(), '\n').size() == 3);  // it cannot be written; it can again; the end
    std::filesystem::remove_all(run);
    events.event("one", {{"n", 5}});
    CHECK(numbers() == std::vector<int>{5});
}

TEST_CASE_FIXTURE(Events, "log.jsonl: a rank that takes over logs the last step once in all") {
    const auto heir_after = [&](int step) {
        RunLog heir(log, "", 1, 1, 3);
        heir.become(0, run, step);
        for (const int n : {step, step + 1}) heir.event("step", {{"step", n}, {"n", n}});
    };
    {
        RunLog first(log, run, 0, 1, 3);
        for (const int n : {1, 2}) first.event("step", {{"step", n}, {"n", n}});
        first.event("checkpoint", {{"step", 2}, {"n", 0}});
    }
    heir_after(2);
    heir_after(4);  // the rank before was lost before it had logged step 4
    CHECK(numbers() == std::vector<int>{1, 2, 0, 3, 4, 5});
}

TEST_CASE("advice of the network: where this rank alone would be a tenth faster, with numbers") {
    // 100 images, half of them here, in 1 s of computing and 3 s of waiting.
    const std::string text = advice_of_network(1, 3, 100, 0.5);
    CAPTURE(text);
    for (const char* part : {" 50 img/s", " 25:", " 75 %", "--sync diloco:20", "--batch"})
        CHECK(contains(text, part));
    CHECK(advice_of_network(1, 1, 100, 0.5) == "");  // as fast
    CHECK(advice_of_network(1, 1.3, 100, 0.5) != "");
    CHECK(advice_of_network(1, 3, 100, 0) == "");
}
