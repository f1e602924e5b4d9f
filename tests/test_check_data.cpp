// test_check_data.cpp — the report on a data set's files, and the table of the pipeline's stages.
#include "data/check_data.h"

#include <fstream>

#include "data/sources/generated.h"
#include "src/bench/bench.h"
#include "tests/data_files.h"
#include "tests/jobs.h"

using namespace convoy;

TEST_CASE("check names every bad file with its cause, counts by class, and finds copies") {
    TempDir dir;
    const SourcePtr pictures = generated_source(kGeneratedClasses, 1, 0, 9);
    const auto put = [&](const std::string& name, size_t picture, size_t cut = 0) {
        Bytes bytes;
        pictures->read(picture, bytes);
        bytes.resize(bytes.size() - cut);
        ::put(dir / name, bytes);
    };
    put("train/a/1.jpg", 0), put("train/a/2.jpg", 1), put("train/a/3.jpg", 1);
    put("train/b/1.jpg", 2), put("train/b/2.jpg", 3, 1000), put("train/b/3.jpg", 0);
    put("val/a/1.jpg", 4), put("val/a/copy.jpg", 1), put("val/b/1.jpg", 5);
    std::ofstream(dir / "val/b/empty.png");
    for (const char* name : {"train/a/1.HEIC", "train/b/2.heic", "train/a/notes.txt"})
        std::ofstream(dir / name) << "x";

    Log log;
    const DataSet set = open_data({.train = dir.path()}, log);
    for (int threads : {1, 3}) {
        Quiet out;
        CHECK(check_data(set, threads, false, out.file, log) == 2);
        const std::string text = out.text();
        INFO(text);
        CHECK(contains(text, cat("bad: ", dir / "train/b/2.jpg", ": truncated")));
        CHECK(contains(text, cat("bad: ", dir / "val/b/empty.png", ": the file is empty")));
        CHECK(contains(text, "training: 6 images, 1 bad"));
        CHECK(contains(text, "validation: 4 images, 1 bad"));
        CHECK(contains(text, "sizes from 96x96 to 96x96"));
        CHECK(contains(text,
                       cat("in two classes: ", dir / "train/a/1.jpg = ", dir / "train/b/3.jpg")));
        CHECK(contains(text, cat("in training and validation: ", dir / "train/a/2.jpg = ",
                                 dir / "val/a/copy.jpg")));
        CHECK(contains(text, "1 more images repeat"));
        CHECK(contains(text, "the largest class has 1.0 times the images of the smallest"));
        CHECK(contains(text, "5 jpg; sizes"));
        CHECK(contains(text, "2 .heic, 1 .txt"));
    }
    Quiet json;
    check_data(set, 2, true, json.file, log);
    const auto report = nlohmann::json::parse(json.text());
    CHECK(report["training"]["classes"]["b"] == nlohmann::json({{"images", 3}, {"bad", 1}}));
    CHECK(report["training"]["left_out_by_kind"] == nlohmann::json({{".heic", 2}, {".txt", 1}}));
    CHECK(report["validation"]["formats"] == nlohmann::json({{"jpg", 3}}));
    CHECK(report["validation"]["bad"].size() == 1);
    CHECK(report["in_two_classes"][0][1] == dir / "train/b/3.jpg");
    CHECK(report["in_training_and_validation"].size() == 1);
    CHECK(report["repeated_in_their_class"] == 1);
}

TEST_CASE("bench data measures every stage and prints a table or JSON lines") {
    const auto source = generated_source(kGeneratedClasses, 1, 0, 40);
    Preprocess how;
    how.size = 32;
    const auto bench = [&](bool json) {
        Quiet out;
        Table table(json, out.file);
        bench_data(source, how, {.batch = 0, .shares = {}, .threads = 3}, 1 << 30, 0.01, table);
        return out.text();
    };
    const std::string lines = bench(true);
    const std::vector<nlohmann::json> rows = json_lines(lines);
    CHECK(std::ranges::count(lines, '\n') == 10);  // nothing else
    for (const nlohmann::json& row : rows) CHECK(row.at("images_per_second").get<double>() > 0);
    REQUIRE(rows.size() == 10);  // four stages, the loaders with 1, 2 and 3 threads
    CHECK(rows[5].at("threads") == 2);
    CHECK(rows[6].at("threads") == 3);
    CHECK(contains(rows[7].at("stage").get<std::string>(), "decoded cache"));
    CHECK(contains(bench(false), "loader, decoded cache"));
}
