// Reports: quality of a model (src/run/quality.h), its page, and heat maps
// (src/report).
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <opencv2/imgcodecs.hpp>

#include "src/base/text.h"
#include "src/checkpoint/weights.h"
#include "src/report/eval_report.h"
#include "src/report/explain.h"
#include "src/report/html_parts.h"
#include "tests/jobs.h"
#include "tests/net_support.h"

using namespace convoy;
using nlohmann::json;

namespace {

struct NoImages : Source {
    std::string name(size_t i) const override { return cat("<b>\xff ", i); }
    void read(size_t i, std::vector<uint8_t>&) const override { fail(name(i), ": gone"); }
};

// Images of classes `labels`, of which a model of three classes gave its guesses `logits`.
void add(Quality& quality, const std::vector<int32_t>& labels, const std::vector<float>& logits,
         uint64_t first = 0) {
    Batch batch;
    batch.n = int(labels.size()), batch.labels = labels;
    for (size_t i = 0; i < labels.size(); ++i) batch.samples.push_back(first + i);
    quality.add(batch, logits);
}

float logit_of(double probability) {  // beside two zeros
    return float(std::log(2 * probability / (1 - probability)));
}

}  // namespace

TEST_CASE("report: an interval is Wilson's") {
    // Of Wilson's formula by hand: 8 of 10, none and all of 20.
    CHECK(wilson_interval(8, 10).low == doctest::Approx(0.490162).epsilon(1e-5));
    CHECK(wilson_interval(8, 10).high == doctest::Approx(0.943318).epsilon(1e-5));
    CHECK(wilson_interval(0, 20).low == 0);
    CHECK(wilson_interval(0, 20).high == doctest::Approx(0.161125).epsilon(1e-5));
    CHECK(wilson_interval(20, 20).high == 1);
    CHECK(wilson_interval(0, 0).low == 0);
    CHECK(wilson_interval(0, 0).high == 1);
}

TEST_CASE("report: two ranks count what one would, and keep the worst mistakes of both") {
    // Guesses 0 with probability 0.9 (right), 0.8 (wrong), 0.6 (wrong); 1 with 0.7 (right).
    const std::vector<float> first = {logit_of(0.9), 0, 0, logit_of(0.8), 0, 0};
    const std::vector<float> second = {logit_of(0.6), 0, 0, 0, logit_of(0.7), 0};
    const auto check = [](const Quality& quality) {
        CHECK(quality.pairs == std::vector<float>{1, 0, 0, 1, 1, 0, 1, 0, 0});
        CHECK(quality.of_class(0).recall() == 1);
        CHECK(quality.of_class(0).precision() == doctest::Approx(1 / 3.));
        CHECK(quality.of_class(0).f1() == doctest::Approx(0.5));
        CHECK(quality.of_class(2).recall() == 0);
        CHECK(quality.of_class(2).precision() == 0);
        // Each in a bin of its own: |1−0.9|, |0−0.8|, |0−0.6|, |1−0.7|, a quarter of each.
        CHECK(quality.calibration_error() == doctest::Approx(0.45));
        REQUIRE(quality.worst.size() == 2);
        CHECK(quality.worst[0].truth == 1);
        CHECK(quality.worst[1].truth == 2);
        CHECK(quality.worst[0].probability == doctest::Approx(0.8));
        CHECK(quality.worst[0].jpeg.empty());
    };
    Quality alone(3);
    add(alone, {0, 1}, first);
    add(alone, {2, 1}, second, 2);
    Communicator one_rank;
    alone.gather(one_rank, NoImages());
    check(alone);
    run_ranks(
        2, [](JoinOptions&) {},
        [&](Job& job) {
            Quality quality(3);
            if (job.communicator->rank() == 0)
                add(quality, {0, 1}, first);
            else
                add(quality, {2, 1}, second, 2);
            quality.gather(*job.communicator, NoImages());
            check(quality);
        });
}

TEST_CASE("report: recalls and macro F1 of unequal classes, on one rank and on two") {
    // 4 images of class 0, 3 right; 1 of class 1, guessed as 0. Class 2 has none.
    const std::vector<float> zero = {1, 0, 0}, one = {0, 1, 0};
    const auto logits = [&](std::initializer_list<const std::vector<float>*> rows) {
        std::vector<float> all;
        for (const auto* row : rows) all.insert(all.end(), row->begin(), row->end());
        return all;
    };
    const std::vector<std::string> names = {"cat", "dog", "owl"};
    run_ranks(
        2, [](JoinOptions&) {},
        [&](Job& job) {
            Communicator& communicator = *job.communicator;
            Quality quality(3);
            if (communicator.rank() == 0)
                add(quality, {0, 0, 1}, logits({&zero, &one, &zero}));
            else
                add(quality, {0, 0}, logits({&zero, &zero}));
            const auto all = quality.classes_of_all(communicator);
            // F1 of class 0: 2·3/(4 + 4), of class 1: 0.
            CHECK(class_fields(all)["macro_f1"] == doctest::Approx(0.375));
            CHECK(class_fields(all)["recall"] == nlohmann::json{0.75, 0.0, 0.0});
            const std::string text = class_text(all, names);
            CHECK(text.find("dog 0.0 %") < text.find("cat 75.0 %"));
            CHECK(text.find("owl") == text.npos);
        });
    CHECK(class_text({{3, 3, 3}, {1, 1, 1}}, names).empty());  // three to one is no more than that
    CHECK(class_fields({{3, 3, 3}, {1, 1, 1}}).empty());
}

TEST_CASE("report: logits that are not finite are no crash") {
    Quality quality(3);
    add(quality, {0, 1, 2}, {NAN, 0, 0, INFINITY, 0, 0, -INFINITY, -INFINITY, -INFINITY});
    Communicator one_rank;
    quality.gather(one_rank, NoImages());
    CHECK(std::isfinite(quality.calibration_error()));
}

TEST_CASE("report: a page of an evaluation holds names as text, and JSON the numbers") {
    TempDir dir;
    const std::string evil = "<img src=x onerror=alert(1)>";
    const ModelCard card{"tiny\"<", "", {8, 8, 3}, {evil, "b", "c\xff"}};
    Quality quality(3);
    add(quality, {0, 1, 1, 2}, {9, 0, 0, 5, 0, 0, 0, 3, 0, 1, 0, 0});
    Communicator one_rank;
    quality.gather(one_rank, NoImages());
    Sums sums{.loss = 2, .correct = 2, .top5 = 4, .count = 4, .skipped = 1};
    const Evaluated result{"m", "d&d", card, sums, quality};
    write_eval_report(dir / "a/b", result);
    const std::string page = read_file(dir / "a/b/report.html");
    CHECK(!contains(page, "<img src=x"));
    CHECK(contains(page, "&lt;img src=x onerror=alert(1)&gt;"));
    CHECK(!contains(page, "<b>?"));
    CHECK(is_utf8(page));
    CHECK(!contains(page, "<script"));
    CHECK(contains(page, "<td>2</td></tr>\n</table>\n<h2>The wrong"));  // of the last bin
    const json numbers = json::parse(read_file(dir / "a/b/report.json"));
    CHECK(numbers["top1"] == 0.5);
    CHECK(numbers["classes"][1]["recall"] == 0.5);
    CHECK(numbers["confusion"] == json::parse("[[1,0,0],[1,1,0],[1,0,0]]"));
    CHECK(numbers["mistakes"].size() == 2);

    CHECK(missed_demands(result, 0, 0) == "");
    CHECK(missed_demands(result, 0.5, 0) == "");
    CHECK(missed_demands(result, 0.6, 0) == "top-1 is 50.0 %, --min-top1 asks for 60.0 %");
    CHECK(contains(missed_demands(result, 0, 0.6), "of each class: 'c"));
    CHECK(contains(missed_demands(result, 0, 0.6), "'b' 50.0 %"));
    std::ofstream(dir / "file") << "no folder";
    CHECK_FAILS(write_eval_report(dir / "file", result), "cannot make the folder");
}

TEST_CASE("explain: a heat map is that of finite differences, as in evaluation") {
    const std::string text = R"(input 12x10
conv2d c1 out 6 size 3 pad 1
batchnorm b
relu
conv2d c2 out 5 size 3 pad 1
batchnorm b2
relu
maxpool size 2 stride 2
dropout 0.5
flatten
linear f1 out 16
relu
linear f2 out classes
)";
    constexpr size_t kLower = 6;  // layers of the lines above, up to the second relu
    TempDir dir;
    TrainedModel trained;
    trained.backend = make_backend(current_backend());
    Backend& backend = *trained.backend;
    ModelOptions options{.name = "m", .classes = 4, .seed = 5, .plain = true};
    trained.model = std::make_unique<Model>(text, options, backend);
    trained.card = {"m", text, trained.model->input(), {"a", "b", "c", "d"}};
    trained.file = dir / "m.safetensors";
    const SafeTensors weights = export_weights(*trained.model, backend);
    write_safetensors(trained.file, weights);
    const std::shared_ptr<Params> params(std::shared_ptr<void>(), &trained.model->params());
    options.stage = {0, kLower};
    Model lower(text, options, backend, params);
    options.stage = {kLower, SIZE_MAX};
    Model upper(text, options, backend, params);
    lower.plan(2, false), upper.plan(2, false);

    const Tensor images = backend.alloc(Shape{2, 12, 10, 3}, backend.activations());
    const std::vector<float> pixels = random_floats(images.elems(), 7);
    const Tensor floats{backend.alloc(images.elems()), images.shape()};
    backend.upload(floats.floats(), pixels.data(), pixels.size() * sizeof(float));
    backend.copy(images, floats);
    Explainer explainer(trained, 2);
    const std::vector<int> classes = {1, 3};
    const std::vector<float> maps = explainer.run(images, classes);
    CHECK(explainer.H() == 12);
    CHECK(explainer.W() == 10);

    Pass pass;
    pass.training = false;
    const Tensor a = lower.forward(images, pass);
    const std::vector<float> values = explainer.floats_of(a);
    const size_t places = 120, C = 5;
    const Tensor moved{backend.alloc(values.size()), a.shape()};
    const auto logit = [&](size_t n, size_t c, float by) {
        std::vector<float> copy = values;
        for (size_t p = 0; p < places; ++p) copy[(n * places + p) * C + c] += by;
        backend.upload(moved.floats(), copy.data(), copy.size() * sizeof(float));
        return explainer.floats_of(upper.forward(moved, pass))[n * 4 + size_t(classes[n])];
    };
    for (size_t n = 0; n < 2; ++n) {
        std::vector<double> want(places);
        for (size_t c = 0; c < C; ++c) {
            const double slope = (logit(n, c, 1e-3f) - logit(n, c, -1e-3f)) / 2e-3 / places;
            for (size_t p = 0; p < places; ++p) want[p] += slope * values[(n * places + p) * C + c];
        }
        double most = 0;
        for (const double w : want) most = std::max(most, w);
        REQUIRE(most > 0);
        for (size_t p = 0; p < places; ++p)
            CHECK(std::abs(maps[n * places + p] - std::max(want[p], 0.0)) < 0.02 * most);
    }
    const Image both = heat_picture(pixels.data(), Preprocess(trained.card.size),
                                    std::span(maps).first(places), 12, 10);
    CHECK(both.H == 228);
    CHECK(both.W == 380);

    trained.card.model_text = "input 8\nflatten\nlinear f out classes\n";
    TrainedModel flat;
    flat.backend = make_backend(current_backend());
    flat.card = {"f", trained.card.model_text, {8, 8, 3}, {"a", "b"}};
    flat.model = std::make_unique<Model>(flat.card.model_text, flat.card.options(), *flat.backend);
    flat.file = dir / "f.safetensors";
    write_safetensors(flat.file, export_weights(*flat.model, *flat.backend));
    CHECK_FAILS(Explainer(flat, 1), "no convolution");
}

TEST_CASE("program: reports, a gate that closes, and heat maps") {
    TempDir dir;
    const std::string run = dir / "run";
    output_of(typed("--generated 48 --size 32 --batch 8 --epochs 1 --device cpu --out") +
              Words{run});
    output_of(
        {"eval", "--from", run, "--device", "cpu", "--report", dir / "rep", "--min-top1", "0"});
    CHECK(json::parse(read_file(dir / "rep/report.json"))["images"] == 8);
    CHECK(contains(read_file(dir / "rep/report.html"), "data:image/jpeg;base64,/9j/"));
    cv::imwrite(dir / "x.png", cv::Mat(20, 30, CV_8U, cv::Scalar(90)));
    for (const char* name : {"own/circle", "own/square", "own/triangle"}) {
        std::filesystem::create_directories(dir / name);
        std::filesystem::copy_file(dir / "x.png", dir / (std::string(name) + "/x.png"));
    }
    const std::string own = output_of({"eval", "--from", run, "--device", "cpu", "--val",
                                       dir / "own", "--report", dir / "own-report"});
    CHECK(contains(own, "3 images of " + (dir / "own")));
    CHECK(json::parse(read_file(dir / "own-report/report.json"))["data"] == dir / "own");
    const std::string gate =
        output_of({"eval", "--from", run, "--device", "cpu", "--min-recall", "1"}, 3);
    CHECK(contains(gate, "--min-recall asks for 100.0 % of each class"));
    CHECK(contains(output_of({"predict", "--from", run, "--device", "cpu", "--explain",
                              dir / "heat", dir / "x.png"}),
                   "wrote " + (dir / "heat")));
    size_t pictures = 0;
    for (const auto& entry : std::filesystem::directory_iterator(dir / "heat"))
        pictures += entry.path().string().ends_with("x.png.heat.jpg");
    CHECK(pictures == 1);
}

TEST_CASE("program: doctor names what would keep a job from starting, and says what to mend") {
    TempDir dir;
    const auto doctor = [](std::vector<std::string> words) {
        words.insert(words.begin(), {"doctor", "--json"});
        const auto [status, output] = run_trainer(words);
        std::map<std::string, json> findings;
        for (const json& finding : json_lines(output)) {
            findings[finding["check"]] = finding;
            CHECK((finding["state"] == "ok" || finding["advice"] != ""));
        }
        findings["status"] = status;
        return findings;
    };
    auto good = doctor({"--out", dir.path(), "--coord", cat("127.0.0.1:", free_port())});
    CHECK(good["status"] == 0);
    CHECK(good["disk"]["state"] == "ok");
    CHECK(good["port"]["state"] == "ok");
    CHECK(good["coordinator"]["finding"].get<std::string>().ends_with("nobody listens there yet"));
    auto later = doctor({"--out", dir / "not/yet"});
    CHECK(later["disk"]["state"] == "ok");
    CHECK(std::filesystem::is_empty(dir.path()));
    auto bad = doctor({"--out", "/proc/self/no folder", "--coord", "no.such.host.invalid"});
    CHECK(bad["status"] == 1);
    CHECK(bad["disk"]["state"] == "BAD");
    CHECK(bad["coordinator"]["state"] == "BAD");
    CHECK(std::filesystem::is_empty(dir.path()));

    Diary diary;
    RankZero listens(2, diary);
    auto taken = doctor({"--out", dir.path(), "--port", cat(listens.port())});
    CHECK(taken["status"] == 0);
    CHECK(taken["port"]["state"] == "note");
}
