// `trainer finetune`: the model is recognised, its last layer trains alone for a while, then all.
#include <opencv2/imgcodecs.hpp>
#include <random>

#include "src/checkpoint/weights.h"
#include "src/cli/commands.h"
#include "tests/jobs.h"

using namespace convoy;

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
        if (param->running) tensors.tensors[layer_name(*param) + ".num_batches_tracked"] = {};
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
    output_of(typed("--generated 48 --batch 8 --size 32 --epochs 1 --threads 1 --out") +
              Words{first});
    write_class(folder / "photos/train/blue", 200, 40);
    write_class(folder / "photos/train/red", 20, 220);
    write_class(folder / "photos/val/blue", 180, 60);
    write_class(folder / "photos/val/red", 30, 200);
    const auto start = [&](const Words& words) {
        return Cluster(folder, 2,
                       words + typed("--threads 1 CONVOY_PREFLIGHT=off --decode-threads 1"))
            .end();
    };
    const std::string weights = folder / "weights.safetensors";
    SafeTensors prefixed;  // a prefix of all names is dropped, with a notice
    for (const auto& [name, tensor] : read_safetensors(first + "/latest/model.safetensors").tensors)
        prefixed.tensors["backbone." + name] = tensor;
    write_safetensors(weights, prefixed);
    const std::string said = start(
        Words{"finetune", weights, "--data", folder / "photos", "--out", run} +
        typed("--batch 8 --size 32 --epochs 3 --ema 0.5 --save-every 0.3 --keep 99 --seed 5"));
    CAPTURE(said);
    CHECK(contains(said, "weights of tiny"));
    const size_t told = said.find("'backbone.'");
    CHECK(told != std::string::npos);
    CHECK(said.find("'backbone.'", told + 1) == std::string::npos);  // though it is read twice
    CHECK(contains(said, "100 steps on 24 images"));                 // of the last layer alone
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
    CHECK(conv(at(1)) != start_values);  // then all layers train
    for (const int step : {1, 3, 4}) {
        CAPTURE(step);
        std::filesystem::remove_all(again);
        start({"--resume", fmt::format("{}/step-{:08}", run, step), "--out", again});
        for (const char* name : {"model.safetensors", "optim.safetensors"})
            CHECK(read_file(cat(run, "/latest/", name)) == read_file(cat(again, "/latest/", name)));
    }
    // A run folder will do; its weights know their size.
    CHECK(
        contains(output_of(Words{"finetune", first, "--data", folder / "photos"} +
                           typed("--batch 8 --steps 1 --threads 1 --out") + Words{folder / "own"}),
                 "tiny, input 32x32"));
    const Words small = typed("--generated 24 --batch 8 --size 16 --steps 1 --threads 1 --out");
    output_of(typed("--model resnet20") + small + Words{folder / "other"});
    CHECK(contains(output_of(Words{"--init", folder / "other/latest/model.safetensors"} + small +
                                 Words{folder / "none", "--freeze", "conv1"},
                             1),
                   "--model resnet20"));
    CHECK(contains(output_of({"finetune", weights, "--resume", run}, 1), "--resume"));
    CHECK(
        contains(output_of({"finetune", folder / "photos/train/red/0.png", "--generated", "48"}, 1),
                 "0.png"));
    CHECK(shell(cat(trainer_path(), " finetune ", weights, " --generated 24 --batch 8 --size ",
                    "32 --epochs 1 --out ", folder / "lost", " >/dev/full 2>&1")) == 0);
}

TEST_CASE("program: a network's mean and deviation reach the model files of a run and of import") {
    TempDir folder;
    const std::string net = folder / "net.txt", file = folder / "run/latest/model.safetensors";
    std::ofstream(net) << "input 16 mean 0.25 std 0.5,0.5,0.125\nflatten\nlinear fc out classes\n";
    output_of(typed("--generated 24 --batch 8 --steps 1 --threads 1 --model") +
              Words{net, "--out", folder / "run"});
    output_of({"import", file, "--model", net, "--out", folder / "again.safetensors"});
    for (const std::string& one : {file, folder / "again.safetensors"}) {
        const auto metadata = read_safetensors(one).metadata;
        CHECK(metadata.at("mean") == "[0.25,0.25,0.25]");
        CHECK(metadata.at("std") == "[0.5,0.5,0.125]");
    }
}

TEST_CASE(
    "program: training on few images of one's own says what trains, and that finetune is better") {
    TempDir folder;
    for (const char* name : {"a", "b"})
        write_class(folder / (std::string("photos/") + name), 9, 99);
    const auto said = [&](const Words& words) {
        return output_of(
            words + typed("--batch 8 --steps 1 --threads 1") +
            Words{"--data", folder / "photos", "--out", folder / cat("run", words.size())});
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

TEST_CASE("program: tune --lr says where the loss falls, and ends where the loss diverges") {
    TempDir folder;
    for (const bool diverges : {false, true}) {
        const std::string out = folder / (diverges ? "diverges" : "rises");
        const std::string output =
            output_of(typed("tune --generated 48 --batch 8 --size 32 --threads 1 --steps 40 "
                            "--decode-threads 1 --lr") +
                      Words{diverges ? "1000" : "0.1", "--out", out});
        const auto found = nlohmann::json::parse(read_file(out + "/lr.json"));
        const bool is_clear = found["fall"] > 2 * found["scatter"].get<double>();
        CHECK(found["is_clear"] == is_clear);
        CHECK(contains(output, "least at ") == is_clear);
        CHECK(!contains(output, "step 5/"));
        const auto& points = found["points"];
        CHECK((diverges ? points.size() < 40 : points.size() == 40));
        CHECK(found["steepest"] < points.back()["lr"]);
        const double ratio = points[1]["lr"].get<double>() / points[0]["lr"].get<double>();
        CHECK(ratio == doctest::Approx(std::pow(10, 6 / 39.0)).epsilon(1e-3));
        CHECK(!std::filesystem::exists(out + "/latest"));
    }
    const Words small = typed("tune --lr --generated 48 --batch 8 --size 16 --threads 1 --steps");
    CHECK(contains(output_of(small + Words{"30"}), "--out DIR"));
    CHECK(!std::filesystem::exists("lr-find"));
    Process endless(folder, "endless", small + Words{"1000000", "--verbose"});
    REQUIRE(endless.wait_for("step 5/"));
    endless.kill(SIGINT);
    CHECK(endless.wait() == 128 + SIGINT);
    CHECK(!contains(endless.output(), "--resume"));
}

TEST_CASE("program: what does not go together is refused in a sentence at the start") {
    TempDir folder;
    write_class(folder / "photos/a", 1, 2);
    write_class(folder / "photos/b", 100, 20);
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
          {{"--data", folder / "photos", "--generated", "48"}, {"--data", "--generated 48"}},
          {{"--data", folder / "photos", "--data", folder / "photos"}, {"--data"}},
          {{"--val-split", "0", "--early-stop", "2", "--data", folder / "photos"},
           {"--early-stop"}}}) {
        const std::string output =
            output_of(words + Words{"--size", "32", "--batch", "8", "--out", folder / "run"}, 1);
        CAPTURE(output);
        for (const std::string& name : why) CHECK(contains(output, name));
    }
}
