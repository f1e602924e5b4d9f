// test_pack_data.cpp — `trainer pack`: the same images as folders, lists, tar and TFRecord.
#include "data/pack_data.h"

#include <fstream>
#include <opencv2/imgcodecs.hpp>
#include <set>

#include "data/check_data.h"
#include "data/sources/generated.h"
#include "tests/data_files.h"
#include "tests/jobs.h"
#include "tests/pictures.h"

using namespace convoy;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

// n pictures a class, in class folders, and a list that names them in the folders' order.
void write_set(const std::string& folder, size_t n) {
    const SourcePtr pictures = generated_source({"square", "circle"}, 3, 0, 2 * n);
    for (const char* name : {"circle", "square"}) {
        for (size_t i = 0; i < 2 * n; ++i) {
            if (pictures->classes()[size_t(pictures->label(i))] != name) continue;
            std::vector<uint8_t> bytes;
            pictures->read(i, bytes);
            const std::string file = fmt::format("{}/{:03}.jpg", name, i);
            put(folder + "/" + file, bytes);
            std::ofstream(folder + "/all.txt", std::ios::app) << file << '\t' << name << '\n';
        }
    }
}

DataSet open(const std::string& path, float val_split = 0) {
    return ::open(DataOptions{.train = path, .val_split = val_split, .seed = 5});
}
void pack(const DataSet& set, PackOptions options) {
    Quiet quiet;
    if (options.shard_bytes == 0) options.shard_bytes = 40'000;
    pack_data(set, options, quiet.log);
}

// Each image's bytes with the name of its class, in the order of the source.
using Content = std::vector<std::pair<std::string, std::vector<uint8_t>>>;
Content content(const Source& source) {
    Content all;
    for (size_t i = 0; i < source.size(); ++i) {
        all.emplace_back(source.classes()[size_t(source.label(i))], std::vector<uint8_t>());
        source.read(i, all.back().second);
    }
    return all;
}

std::map<std::string, std::string> files_in(const std::string& folder) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(folder))
        if (entry.path().filename() != "convoy.index")  // it has times of change
            files[entry.path().filename()] = read_file(entry.path());
    return files;
}

}  // namespace

TEST_CASE(
    "pack: tar and TFRecord hold the same bytes and classes, in the folders' order or shuffled") {
    TempDir dir;
    write_set(dir / "set", 12);
    const DataSet set = open(dir / "set");
    const Content want = content(*set.train);
    for (const ShardFormat format : {ShardFormat::tar, ShardFormat::tfrecord}) {
        const std::string kept = dir / cat("kept", int(format)),
                          mixed = dir / cat("mixed", int(format));
        pack(set, {.out = kept, .format = format, .keep_order = true});
        pack(set, {.out = mixed, .format = format, .seed = 1});
        CHECK(content(*open(kept).train) == want);
        Content other = content(*open(mixed).train);
        CHECK(other != want);
        CHECK(std::multiset<Content::value_type>(other.begin(), other.end()) ==
              std::multiset<Content::value_type>(want.begin(), want.end()));
        const json about = json::parse(read_file(kept + "/dataset.json"));
        CHECK(about["classes"] == json({"circle", "square"}));
        CHECK(about["train"]["images"] == 24);
        CHECK(about["train"]["images_of_class"] == json({12, 12}));
        CHECK(about["train"]["shards"].size() > 1);
        for (const json& shard : about["train"]["shards"]) {
            const std::string path = cat(kept, "/", shard["name"].get<std::string>());
            CHECK(shard["bytes"] == fs::file_size(path));
            // The system's own tool agrees.
            CHECK(shell(cat("echo ", shard["sha256"].get<std::string>(), " ' ", path,
                            "' | sha256sum -c --status")) == 0);
        }
    }
}

TEST_CASE("pack: the same bytes with any number of threads, and after it was interrupted") {
    TempDir dir;
    write_set(dir / "set", 15);
    const DataSet set = open(dir / "set", 0.2f);
    pack(set, {.out = dir / "one", .threads = 1});
    pack(set, {.out = dir / "four", .threads = 4});
    const auto want = files_in(dir / "one");
    CHECK(want == files_in(dir / "four"));
    CHECK(want.contains("val-000000.tar"));
    CHECK(want.contains("train-000001.tar"));
    CHECK(open(dir / "one").val->size() == set.val->size());

    // Interrupted: no description yet, a shard missing, another half written.
    const std::string last = dir / "one/train-000001.tar";
    const auto finished = fs::last_write_time(dir / "one/train-000000.tar");
    const std::string plan = json::parse(want.at("dataset.json"))["plan"];
    fs::remove(dir / "one/dataset.json"), fs::remove(last);
    std::ofstream(last + ".part") << "half";
    std::ofstream(dir / "one/pack.plan") << plan;
    pack(set, {.out = dir / "one"});
    CHECK(files_in(dir / "one") == want);
    CHECK(fs::last_write_time(dir / "one/train-000000.tar") == finished);

    // Other options or another set do not mix with it.
    Quiet quiet;
    CHECK_FAILS(pack_data(set, {.out = dir / "one", .shard_bytes = 50'000}, quiet.log),
                "name an empty folder");
    CHECK_FAILS(pack_data(set, {.out = dir / "set", .shard_bytes = 40'000}, quiet.log),
                "name an empty folder");
    CHECK(files_in(dir / "one") == want);
}

TEST_CASE(
    "pack: --max-side shrinks what is larger and nothing else; unreadable images are left out") {
    TempDir dir;
    write_set(dir / "set", 3);
    cv::imwrite(dir / "set/circle/large.png", cv::Mat(60, 300, CV_8UC3, cv::Scalar(10, 200, 90)));
    const DataSet set = open(dir / "set");
    pack(set, {.out = dir / "small", .max_side = 150, .keep_order = true});
    const Content before = content(*set.train), after = content(*open(dir / "small").train);
    REQUIRE(after.size() == 7);
    int changed = 0;
    for (size_t i = 0; i < after.size(); ++i) {
        if (after[i] == before[i]) continue;
        ++changed;
        const Image image = decoded(after[i].second);
        CHECK((image.W == 150 && image.H == 30));
        CHECK(std::abs(image.pixels[0] - 90) <= 2);  // red; JPEG rounds
        CHECK(std::abs(image.pixels[2] - 10) <= 2);
    }
    CHECK(changed == 1);

    std::ofstream(dir / "set/square/empty.jpg");
    Quiet quiet;
    const DataSet bad = open(dir / "set");
    CHECK_FAILS(
        pack_data(bad, {.out = dir / "bad", .shard_bytes = 40'000, .max_bad = 0}, quiet.log),
        "1 of 8 images");
    pack(bad, {.out = dir / "bad", .max_bad = 0.01});
    CHECK(open(dir / "bad").train->size() == 7);

    // One that would be a shard of its own: the shard is empty, and still a shard.
    std::ofstream(dir / "set/circle/000000.jpg") << std::string(50'000, 'x');
    for (const ShardFormat format : {ShardFormat::tar, ShardFormat::tfrecord}) {
        const std::string out = dir / cat("empty", int(format));
        pack(open(dir / "set"),
             {.out = out, .format = format, .max_side = 0, .keep_order = true, .max_bad = 0.3});
        CHECK(open(out).train->size() == 7);
    }
}

TEST_CASE(
    "program: a set as folders, a list, tar and TFRecord is the same to train, eval, predict") {
    TempDir dir;
    write_set(dir / "set", 16);
    for (const char* format : {"tar", "tfrecord"})
        output_of({"pack", dir / "set", dir / format, "--format", format, "CONVOY_KEEP_ORDER=1",
                   "--shard-size", "50K"});
    output_of({"pack", dir / "set", "new/folder"});  // from where the program runs
    std::vector<std::vector<double>> losses, predicted;
    json want;
    for (const char* data : {"set", "set/all.txt", "tar", "tfrecord"}) {
        CAPTURE(data);
        const std::string run = cat(dir / "run-", losses.size()), first = dir / "run-0";
        output_of(typed("--batch 8 --size 32 --epochs 2 --log-every 1 --threads 1") +
                  Words{"--data", dir / data, "--out", run});
        losses.push_back(losses_of(run, {"step"}));
        CHECK(losses.back().size() == 8);
        CHECK(losses.back() == losses.front());

        const std::string output =
            output_of({"eval", "--from", first, "--data", dir / data, "--json", "--threads", "1"});
        const json eval = json_lines(output).at(0);
        if (want.empty()) want = eval;
        CHECK(eval["images"] == 32);
        CHECK(eval["correct"] == want["correct"]);
        CHECK(eval["loss"].get<double>() == doctest::Approx(want["loss"].get<double>()));
        // In whatever order; another place in the batch rounds otherwise.
        std::vector<double>& circles = predicted.emplace_back();
        for (const json& one :
             json_lines(output_of({"predict", "--from", first, dir / data, "--json"})))
            for (const json& guess : one["top5"])
                if (guess["class"] == "circle") circles.push_back(guess["probability"]);
        std::ranges::sort(circles);
        CHECK(circles.size() == 32);
        CHECK_CLOSE(circles, predicted.front(), 1e-5);
    }
    const json shard =
        json_lines(output_of({"eval", "--from", dir / "run-0", "--data",
                              dir / "tar/train-000000.tar", "--json", "--threads", "1"}))
            .at(0);
    CHECK(shard["images"] > 0);
    CHECK(shard["images"] < 32);
}

TEST_CASE("pack: shards that are lost, shortened or changed later are noticed") {
    TempDir dir;
    write_set(dir / "set", 24);
    const std::string out = dir / "out", second = out + "/train-000001.tar",
                      val = out + "/val-000000.tar";
    pack(open(dir / "set", 0.2f), {.out = out});
    const DataSet whole = open(out);
    const auto checked = [&](const std::string& path) {
        Quiet log, report;
        const DataSet set = open_data({.train = path, .is_check = true}, log.log);
        const int64_t bad = check_data(set, 2, /*as_json=*/false, report.file, log.log);
        return std::pair(bad, report.text());
    };
    CHECK(checked(out).first == 0);

    const std::string kept = read_file(second);
    fs::remove(second);
    ::refuses({.train = out}, "train-000001.tar");
    const SourcePtr rest = open(out + "/train-*").train;  // as the message says
    CHECK((rest->size() < whole.train->size() && rest->damaged() == 0));
    CHECK(::open({.train = out, .part = true}).train->size() == rest->size());  // --shards mine
    put(second, kept);
    fs::rename(val, dir / "elsewhere");
    ::refuses({.train = out}, "val-000000.tar");
    Quiet quiet;
    CHECK_FAILS(open_for_classes({.train = out}, whole.train->classes(), quiet.log),
                "val-000000.tar");
    fs::rename(dir / "elsewhere", val);

    // A folder with the part that is needed is whole. Shards of two folders have a dataset.json
    // each.
    fs::create_directory(dir / "part");
    for (const auto& file : fs::directory_iterator(out))
        if (!file.path().filename().native().starts_with("train-"))
            fs::copy(file.path(), fs::path(dir / "part") / file.path().filename());
    CHECK(open(dir / "part").train->damaged() == 0);
    write_set(dir / "set2", 40);
    pack(open(dir / "set2", 0), {.out = dir / "out2"});
    CHECK(open(dir / "out{2,}/train-*").train->damaged() == 0);

    // Every image that is not there any more counts, not only the one that was cut.
    put(second, kept.substr(0, kept.size() / 2));
    std::string log;
    const SourcePtr less = ::open({.train = out}, &log).train;
    CHECK(less->damaged() >= 2);
    CHECK(less->size() + less->damaged() == whole.train->size());
    CHECK(contains(log, "train-000001.tar"));
    const auto [bad, report] = checked(out);
    CAPTURE(report);
    CHECK(bad == int64_t(less->damaged()));
    CHECK(contains(report, "train-000001.tar"));

    // Another label in a shard of the same size: only the sum tells.
    std::string changed = kept;
    char& label = changed[changed.find(".cls") / 512 * 512 + 512];
    label = label == '0' ? '1' : '0';
    put(second, changed);
    CHECK(open(out).train->damaged() == 0);
    CHECK(checked(out).first == 1);
    // The shard of another set.
    const json about = json::parse(read_file(out + "/dataset.json"));
    const std::string last = about["train"]["shards"].back()["name"];
    put(out + "/" + last, kept);
    ::refuses({.train = out}, last);
}
