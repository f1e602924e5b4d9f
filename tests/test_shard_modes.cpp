// test_shard_modes.cpp — which rank reads what (--shards), by the real binary and by its loaders:
// every sample once an epoch, and a run that stops goes on with exactly the samples that are left.
#include <map>
#include <opencv2/imgcodecs.hpp>

#include "data/loader.h"
#include "data/sources/generated.h"
#include "src/base/check.h"
#include "src/step/input.h"
#include "tests/jobs.h"

using namespace convoy;
using nlohmann::json;

namespace {

// A source of n samples in shards of 7; that of a rank that holds a part of a set.
struct Part final : ChangedSource {
    explicit Part(size_t n) : ChangedSource(generated_source(kGeneratedClasses, 1, 0, n)) {
        for (size_t i = 0; i < n; i += 7) shard_begins_.push_back(i);
    }
};

struct Cut {  // an epoch's steps of `batch` samples from `begin` on, until `steps` are done
    int64_t begin = 0, batch = 5, steps = 1000;
};

// Trains a cut on every rank; counts how often each sample is seen, and checks each slice.
void train(const LoaderOptions& how, int world, Cut cut, std::map<uint64_t, int>& seen) {
    struct Rank {
        std::vector<float> slot;
        std::unique_ptr<Loader> loader;
    };
    std::vector<Rank> ranks(static_cast<size_t>(world));
    int64_t all = 0;
    for (int r = 0; r < world; ++r) {
        LoaderOptions options = how;
        options.rank = r, options.batch = cut.batch;
        const size_t n = size_t(how.parts.empty() ? 53 : how.parts[size_t(r)]);
        Preprocess small;
        small.size = 8, small.seed = 4;
        Rank& rank = ranks[size_t(r)];
        rank.slot.resize(size_t(std::max<int64_t>(1, Loader::max_share(options))) *
                         InputSize(8).elems());
        rank.loader = std::make_unique<Loader>(std::make_shared<Part>(n), small, options,
                                               std::vector<float*>{rank.slot.data()});
        rank.loader->start(2, cut.begin);
        all = rank.loader->samples();
        CHECK(all == 53);
    }
    for (int64_t step = 0; step < cut.steps; ++step) {
        const int64_t size = std::min(cut.batch, all - cut.begin - step * cut.batch);
        int32_t position = 0;
        for (int r = 0; r < world; ++r) {
            Batch* batch = ranks[size_t(r)].loader->next();
            REQUIRE((batch != nullptr) == (size > 0));
            if (!batch) continue;
            CHECK(batch->global_wanted == size);
            REQUIRE(batch->wanted_by.size() == size_t(world));
            CHECK(batch->wanted_by[size_t(r)] == batch->wanted);
            CHECK(batch->n == batch->wanted);
            for (size_t i = 0; i < batch->samples.size(); ++i) {
                ++seen[batch->samples[i]];
                CHECK(batch->positions[i] == position++);
            }
            ranks[size_t(r)].loader->release(batch);
        }
        if (size <= 0) return;
        CHECK(position == size);
    }
}

// One folder a class of small pictures, each of its own colours.
void write_class(const std::string& folder, int first, int count) {
    std::filesystem::create_directories(folder);
    for (int i = first; i < first + count; ++i)
        cv::imwrite(cat(folder, "/", 100 + i, ".png"),
                    cv::Mat(24, 24, CV_8UC3, cv::Scalar(5 * i, 255 - 4 * i, 90 + 3 * i)));
}

struct Run {
    std::vector<double> losses;  // of the steps
    int64_t images = 0;          // of the last epoch that ended
    std::string output;
};

// Two ranks with data of their own train to the end.
Run train_ranks(const TempDir& folder, const std::string& run, const Words& data,
                const Words& more) {
    const Words words = typed(
        "--size 16 --threads 1 --batch 7 --warmup 0 --log-every 1 --save-every 0 --bn-group 1 "
        "--decode-threads 2 CONVOY_PREFLIGHT=off");
    Run result;
    result.output = Cluster(folder, 2, Words{"--data", data[0], "--out", run} + words + more,
                            {"--threads", "1", "--data", data[1]})
                        .end();
    result.losses = losses_of(run, {"step", "val"});
    for (const json& event : read_log(run))
        if (event["event"] == "epoch") result.images = event["images"];
    return result;
}

}  // namespace

TEST_CASE("every sample once an epoch for each mode, world, window, batch and place of resuming") {
    const std::vector<LoaderOptions> modes = {
        {.shares = {1}},
        {.shares = {5, 3, 2, 0}},
        {.shares = {}, .parts = {53}},
        {.shares = {}, .parts = {20, 33}},
        {.shares = {}, .parts = {0, 1, 50, 0, 2}},
        {.shares = {}, .parts = {11, 10, 11, 10, 11}},
    };
    for (LoaderOptions how : modes)
        for (const uint64_t window : {0, 1, 10}) {
            how.window = window;
            const int world = int(std::max(how.shares.size(), how.parts.size()));
            CAPTURE(world, window);
            for (const int64_t batch : {1, 4, 60}) {
                CAPTURE(batch);
                std::map<uint64_t, int> seen;
                train(how, world, {0, 5, 3}, seen);
                // The shards mode `all` goes on with another number of ranks.
                LoaderOptions after = how;
                if (how.parts.empty()) after.shares = {1, 1, 1};
                train(after, how.parts.empty() ? 3 : world, {15, batch}, seen);
                CHECK(seen.size() == 53);
                for (const auto& [sample, times] : seen) CHECK(times == 1);
                CHECK(seen.rbegin()->first == 52);
            }
        }
}

TEST_CASE("validation over parts sees every sample once, in the order of each source") {
    std::map<uint64_t, int> seen;
    train({.shares = {}, .training = false, .parts = {20, 30, 3}}, 3, {}, seen);
    CHECK(seen.size() == 53);
}

TEST_CASE("--shards mine: two ranks with a part each see every image once an epoch") {
    TempDir folder;
    // Rank 0 lacks class c, rank 1 class a: 30 images and 20.
    write_class(folder / "one/a", 0, 18), write_class(folder / "one/b", 18, 12);
    write_class(folder / "two/b", 30, 11), write_class(folder / "two/c", 41, 9);
    const std::string one = folder / "one", two = folder / "two";
    const auto run = [&](const char* name, const Words& more) {
        return train_ranks(folder, folder / name, {one, two},
                           typed("--shards mine --val-split 0.2") + more);
    };
    const Run whole = run("whole", {"--epochs", "2"});
    CAPTURE(whole.output);
    // 18·0.2, 12·0.2, 11·0.2, 9·0.2 are held back: 4 + 2 + 2 + 2.
    CHECK(contains(whole.output, "40 for training on all ranks together"));
    CHECK(contains(whole.output, "a, b, c"));
    CHECK(whole.images == 40);
    REQUIRE(whole.losses.size() == 14);  // 40/7 = 6 steps an epoch, and a validation
    const json meta = json::parse(read_file((folder / "whole") + "/latest/meta.json"));
    CHECK(meta["samples_consumed"] == 0);

    SUBCASE("a run that stops in mid-epoch goes on with the same losses") {
        run("cut", {"--steps", "8", "--schedule", "constant"});
        const Run rest = train_ranks(folder, folder / "cut", {one, two},
                                     {"--resume", folder / "cut", "--steps", "12"});
        const Run straight = run("straight", {"--steps", "12", "--schedule", "constant"});
        CAPTURE(rest.output);
        CHECK(contains(rest.output, "epoch 2, 14 images into it, step 8"));
        CHECK(rest.losses == straight.losses);
    }
    SUBCASE("with other parts the epoch begins again, and the log says so") {
        run("cut", {"--steps", "8"});
        const Run rest = train_ranks(folder, folder / "cut", {two, one},
                                     {"--resume", folder / "cut", "--steps", "15"});
        CAPTURE(rest.output);
        CHECK(contains(rest.output, "epoch 2 begins again: the checkpoint is 14 images into it"));
        CHECK(rest.images == 40);
    }
}

TEST_CASE("--shards mine: what does not go together is refused in a sentence") {
    TempDir folder;
    write_class(folder / "one/a", 0, 5), write_class(folder / "one/b", 5, 5);
    const auto refused = [&](const Words& words, const char* why) {
        CHECK(contains(output_of(words, 1), why));
    };
    refused({"--shards", "mine"}, "--shards mine needs --data");
    refused({"--shards", "mine", "--data", folder / "one", "--share", "2"},
            "--share 2 does not go with --shards mine");
    write_class(folder / "two/a", 0, 5);
    refused({"--shards", "mine", "--data", folder / "two"}, "only one class, 'a', in the data of");
    refused({"--shards", "both"}, "there are all, mine");
}
