// `trainer finetune`: the model is recognised, its last layer trains alone for a while, then all.
#include <nlohmann/json.hpp>
#include <opencv2/imgcodecs.hpp>
#include <random>

#include "src/checkpoint/weights.h"
#include "src/cli/commands.h"
#include "tests/net_support.h"
#include "tests/process.h"
#include "tests/support.h"

using namespace convoy;
using Words = std::vector<std::string>;

// The names and shapes of a built-in model's weights as torchvision writes them, without numbers.
static SafeTensors names_of(const std::string& model, int classes) {
    const auto backend = make_backend("cpu", {.threads = 1});
    const auto params = std::make_shared<Params>();
    const Model whole(model_text(model), {.name = model, .classes = classes}, *backend, params);
    SafeTensors tensors;
    for (const Param* param : params->all()) {
        const Shape s = param->shape;
        tensors.tensors[param->name].shape = param->dims == 1 ? std::vector<int64_t>{s.C}
                                             : param->dims == 2
                                                 ? std::vector<int64_t>{s.N, s.C}
                                                 : std::vector<int64_t>{s.N, s.C, s.H, s.W};
        if (param->running) tensors.tensors[layer_name(param->name) + ".num_batches_tracked"] = {};
    }
    return tensors;
}

TEST_CASE("finetune recognises each built-in model by its tensors, whatever its classes") {
    const auto backend = make_backend("cpu", {.threads = 1});
    for (const std::string& model : built_in_models()) {
        CAPTURE(model);
        CHECK(recognised_model(names_of(model, 7), "w.pth", *backend) == model);
    }
    SafeTensors other;
    CHECK_FAILS((void)recognised_model(other, "w.pth", *backend),
                "w.pth: its tensors are not those of a built-in model");
    other = names_of("resnet18", 1000);
    for (auto& [name, tensor] : other.tensors) tensor.shape.push_back(1);
    other.tensors["fc.bias"].shape = {3};
    CHECK_FAILS((void)recognised_model(other, "w.pth", *backend), "--model NAME|FILE");
}

static void write_class(const std::string& folder, int blue, int red) {
    std::filesystem::create_directories(folder);
    for (int i = 0; i < 12; ++i)
        cv::imwrite(cat(folder, "/", i, ".png"),
                    cv::Mat(32, 32, CV_8UC3, cv::Scalar(blue + i, 60, red - i)));
}

TEST_CASE(
    "program: finetune trains the head, then all; resumed in between it ends with the same "
    "bits, on two ranks") {
    TempDir folder;
    const std::string first = folder / "first", run = folder / "run", again = folder / "again";
    Process before(folder, "before",
                   {"--generated", "48", "--batch", "8", "--size", "32", "--epochs", "1",
                    "--threads", "1", "--out", first});
    REQUIRE(before.wait(60) == 0);
    write_class(folder / "photos/train/blue", 200, 40);
    write_class(folder / "photos/train/red", 20, 220);
    write_class(folder / "photos/val/blue", 180, 60);
    write_class(folder / "photos/val/red", 30, 200);
    const auto start = [&](Words words) {
        const uint16_t port = free_port();
        for (const std::string& word :
             Words{"--coord", cat("127.0.0.1:", port), "--rank", "0", "--world", "2", "--threads",
                   "1", "CONVOY_PREFLIGHT=off", "--decode-threads", "1"})
            words.push_back(word);
        Process rank0(folder, "rank0", words);
        Process rank1(folder, "rank1",
                      {"--coord", cat("127.0.0.1:", port), "--rank", "1", "--threads", "1"});
        CHECK(rank0.wait(60) == 0);
        CHECK(rank1.wait(60) == 0);
        return rank0.output();
    };
    const std::string weights = folder / "weights.safetensors";
    SafeTensors prefixed;  // a prefix of all names is dropped, with a notice
    for (const auto& [name, tensor] : read_safetensors(first + "/latest/model.safetensors").tensors)
        prefixed.tensors["backbone." + name] = tensor;
    write_safetensors(weights, prefixed);
    const std::string said = start({"finetune",     weights, "--data", folder / "photos",
                                    "--batch",      "8",     "--size", "32",
                                    "--epochs",     "3",     "--ema",  "0.5",
                                    "--save-every", "0.3",   "--keep", "99",
                                    "--seed",       "5",     "--out",  run});
    CAPTURE(said);
    CHECK(contains(said, "weights of tiny"));
    const size_t told = said.find("'backbone.'");
    CHECK(told != std::string::npos);
    CHECK(said.find("'backbone.'", told + 1) == std::string::npos);  // though it is read twice
    CHECK(contains(said, "all layers train from epoch 2 on"));
    const auto conv = [](const std::string& file) {
        const SafeTensors all = read_safetensors(file);
        for (const auto& [name, tensor] : all.tensors)
            if (tensor.shape.size() == 4) return tensor.values;
        return std::vector<float>();
    };
    const auto at = [&](int step) {
        return fmt::format("{}/step-{:08}/model.safetensors", run, step);
    };
    const std::vector<float> start_values = conv(weights);
    REQUIRE(!start_values.empty());
    CHECK(conv(at(3)) == start_values);  // 24 images: 3 steps an epoch
    CHECK(conv(at(4)) != start_values);
    for (const int step : {1, 3, 4}) {
        CAPTURE(step);
        std::filesystem::remove_all(again);
        start({"--resume", fmt::format("{}/step-{:08}", run, step), "--out", again});
        for (const char* name : {"model.safetensors", "optim.safetensors"})
            CHECK(read_file(cat(run, "/latest/", name)) == read_file(cat(again, "/latest/", name)));
    }
    const auto refused = [&](Words words, const char* why) {
        Process process(folder, "refused", words);
        CHECK(process.wait(60) == 1);
        CAPTURE(process.output());
        CHECK(contains(process.output(), why));
    };
    refused({"finetune"}, "WEIGHTS");
    refused({"finetune", weights, "--resume", run}, "--resume");
    refused({"finetune", weights}, "--data DIR");
    refused({"train", "--freeze-epochs", "1"}, "--lr");
    refused({"train", "--freeze-epochs", "1", "--sync", "server"}, "--sync server");
    refused({"finetune", folder / "photos/train/red/0.png", "--generated", "48"}, "0.png");
    CHECK(
        std::system(cat(trainer_path(), " finetune ", weights, " --generated 24 --batch 8 --size ",
                        "32 --epochs 1 --out ", folder / "lost", " >/dev/full 2>&1")
                        .c_str()) == 0);
}

TEST_CASE(
    "program: training on few images of one's own says what trains, and that finetune is better") {
    TempDir folder;
    for (const char* name : {"a", "b"})
        write_class(folder / (std::string("photos/") + name), 9, 99);
    const auto said = [&](Words words) {
        const Words all = {
            "--data", folder / "photos", "--batch", "8",     "--steps",
            "1",      "--threads",       "1",       "--out", folder / cat("run", words.size())};
        words.insert(words.end(), all.begin(), all.end());
        const auto [status, output] = run_trainer(words);
        CAPTURE(output);
        CHECK(status == 0);
        return output;
    };
    const std::string bare = said({});
    CHECK(contains(bare, "--model resnet18"));
    CHECK(contains(bare, cat("trainer finetune resnet18.pth --data ", folder / "photos")));
    const std::string chosen = said({"--model", "squeezenet1_1", "--size", "32"});
    CHECK(!contains(chosen, "--model"));
    CHECK(contains(chosen, "trainer finetune squeezenet1_1.pth"));
}

TEST_CASE(
    "tune --lr: a rate is suggested where the loss falls by more than its noise, in the fall") {
    std::mt19937 random(1);
    const auto run = [&](double fall, double noise) {
        std::vector<RatePoint> points;
        for (int i = 0; i < 120; ++i) {
            const double lr = 10 * std::pow(1e-6, 1 - i / 119.0);
            const double down = fall / (1 + std::pow(0.03 / lr, 2));  // half of it at 0.03
            const double up = lr > 3 ? lr : 0;
            points.push_back(
                {lr, 2 - down + up + std::normal_distribution<double>(0, noise)(random)});
        }
        return search_rate(points);
    };
    int mistakes = 0;
    for (int seed = 0; seed < 200; ++seed) {
        mistakes += run(0, 0.1).is_clear();
        const RateSearch found = run(0.5, 0.1);
        CHECK(found.is_clear());
        CHECK(found.scatter == doctest::Approx(0.1).epsilon(0.5));
        const double lr = found.smooth[found.steepest].lr;
        CHECK(lr > 0.03 / 8);
        CHECK(lr < 0.03 * 8);
    }
    // A wrong call has probability 0.0017 (340 of 200,000 runs of this noise), so 0.34 of 200 are
    // expected, and more than 3 with a probability of 0.0004 (Poisson).
    CHECK(mistakes <= 3);
    CHECK(run(0, 0).fall <= 0);
    CHECK(!run(0, 0).is_clear());
}

TEST_CASE("program: tune --lr suggests a rate, draws its curve, and ends where the loss diverges") {
    TempDir folder;
    for (const bool diverges : {false, true}) {
        const std::string out = folder / (diverges ? "diverges" : "rises");
        const Words words = {"tune",
                             "--lr",
                             diverges ? "1000" : "0.1",
                             "--generated",
                             "48",
                             "--batch",
                             "8",
                             "--size",
                             "32",
                             "--threads",
                             "1",
                             "--steps",
                             "40",
                             "--decode-threads",
                             "1",
                             "--out",
                             out};
        Process process(folder, "tune", words);
        const int status = process.wait(60);
        CAPTURE(process.output());
        REQUIRE(status == 0);
        const auto found = nlohmann::json::parse(read_file(out + "/lr.json"));
        const bool is_clear = found["fall"] > 2 * found["scatter"].get<double>();
        CHECK(found["suggestion"].is_number() == is_clear);
        CHECK(contains(process.output(), "suggestion: --lr ") == is_clear);
        const auto& points = found["points"];
        CHECK((diverges ? points.size() < 40 : points.size() == 40));
        CHECK(found["steepest"] < points.back()["lr"]);
        const double ratio = points[1]["lr"].get<double>() / points[0]["lr"].get<double>();
        CHECK(ratio == doctest::Approx(std::pow(10, 6 / 39.0)).epsilon(1e-3));
        CHECK(read_file(out + "/lr.svg").starts_with("<svg "));
        CHECK(!std::filesystem::exists(out + "/latest"));
    }
}

TEST_CASE("program: what does not go together is refused in a sentence at the start") {
    TempDir folder;
    for (const auto& [words, why] :
         {std::pair{Words{"--clip-norm", "1", "--sync", "server"}, Words{"--clip-norm", "--sync"}},
          {{"--optimizer", "muon", "--sync", "async"}, {"--optimizer muon", "--sync async"}},
          {{"--optimizer", "muon", "--device", "simt"}, {"--optimizer"}},
          {{"--optimizer", "muon", "--precision", "bf16"}, {"--precision bf16"}},
          {{"--accumulate", "2", "CONVOY_FACTORS=on"}, {"--accumulate 2", "CONVOY_FACTORS"}},
          {{"--threads", "2x1", "CONVOY_FACTORS=on"}, {"CONVOY_FACTORS"}},
          {{"--threads", "2x1", "--sync", "pipeline:2"}, {"--sync pipeline:2"}},
          {{"--threads", "2x1", "--bn-group", "0"}, {"--threads", "--bn-group"}},
          {{"--threads", "2x1", "--device", "simt"}, {"--threads", "--device cpu"}},
          {{"--accumulate", "2", "--sync", "pipeline:2"}, {"--accumulate 2", "--sync pipeline:2"}},
          {{"--accumulate", "2", "--bn-group", "0"}, {"--accumulate", "--bn-group"}},
          {{"--schedule", "onecycle", "--warmup", "2"}, {"--schedule onecycle", "--warmup 2"}},
          {{"--init", folder / "w", "--resume", folder / "run"}, {"--init", "--resume"}},
          {{"--shards", "mine", "--share", "2", "--data", folder / "photos"},
           {"--shards", "--share"}},
          {{"--val-split", "0", "--early-stop", "2", "--data", folder / "photos"},
           {"--early-stop"}}}) {
        write_class(folder / "photos/a", 1, 2);
        write_class(folder / "photos/b", 100, 20);
        Words all = {"--size", "32", "--batch", "8", "--out", folder / "run"};
        all.insert(all.begin(), words.begin(), words.end());
        Process process(folder, "refused", all);
        CHECK(process.wait(60) == 1);
        CAPTURE(process.output());
        for (const std::string& name : why) CHECK(contains(process.output(), name));
    }
}
