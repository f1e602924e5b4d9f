// The real binary, as its users run it: options, training, resuming, use of the model, and several
// ranks of which one is killed.
#include <fcntl.h>

#include <opencv2/imgcodecs.hpp>
#include <set>

#include "net/control/wire.h"
#include "src/base/text.h"
#include "src/checkpoint/safetensors.h"
#include "src/config/config.h"
#include "src/model/model.h"
#include "tests/device.h"
#include "tests/jobs.h"
#include "tests/net_support.h"
#include "tests/relay.h"

using namespace convoy;
using nlohmann::json;

TEST_CASE("process: a test waits longer where many threads want to run") {
    CHECK((crowding(1, 2) == 1 && crowding(2, 2) == 1 && crowding(8, 2) == 4));
}

TEST_CASE("process: a trainer that still runs fails its test" * doctest::should_fail()) {
    TempDir folder;
    Process waits(folder, "waits",
                  {"--coord", at(free_port()), "--rank", "0", "--world", "2", "--generated", "24"});
    CHECK(waits.wait(0.01) == -1);
}

// A run so small that it takes a second: 40 images, 5 steps an epoch.
static Words small(const Words& more) {
    return typed(
               "train --generated 48 --batch 8 --size 32 --epochs 2 --warmup 0.2 "
               "--decode-threads 1 --threads 1 CONVOY_PREFLIGHT=off") +
           more;
}

// Such a run without an end.
static Words endless(const std::string& out) {
    return small({"--epochs", "100000", "--save-every", "0", "--log-every", "1", "--out", out});
}

static void check_same_checkpoint(const std::string& run, const std::string& other) {
    for (const char* name : {"model.safetensors", "optim.safetensors"})
        CHECK(read_file(cat(run, "/latest/", name)) == read_file(cat(other, "/latest/", name)));
}

static void write_images(const std::string& folder, int count, int size = 40) {
    std::filesystem::create_directories(folder);
    for (int i = 0; i < count; ++i)
        cv::imwrite(cat(folder, "/", i, ".png"),
                    cv::Mat(size, size, CV_8UC3, cv::Scalar(10 * i, 60, 200 - 10 * i)));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they reserve terabytes
TEST_CASE("program: huge images are read one at a time; one that memory has no room for is bad") {
    TempDir folder;
    for (const char* name : {"a", "b"}) write_images(folder / cat("data/", name), 4);
    const Words huge = {"0.jpg", "1.jpg", "2.jpg", "3.jpg"};
    for (const std::string& name : huge) {
        std::ofstream(folder / ("data/a/" + name)) << "\xFF\xD8\xFF";
        std::filesystem::resize_file(folder / ("data/a/" + name), 500 << 20);
    }
    const auto run = [&](int megabytes, const std::string& words) {
        CHECK(shell(cat("ulimit -v ", megabytes, "000; exec ", trainer_path(), " ", words,
                        " --data ", folder / "data", " >", folder / "out", " 2>&1")) >= 0);
        return read_file(folder / "out");
    };
    const std::string train = cat("train --size 16 --batch 4 --epochs 1 --threads 1 ",
                                  "--max-bad 0.5 --decode-threads 4 --out ", folder / "run");
    for (const std::string& words : {std::string("check --decode-threads 4"), train})
        for (const bool fits : {true, false}) {
            const std::string output = run(fits ? 1'500 : 560, words);
            CAPTURE(output);
            for (const std::string& name : huge) CHECK(contains(output, "/a/" + name));
            CHECK(!contains(output, "takes more memory than there is") == fits);
            std::filesystem::remove_all(folder / "run");
        }
}
#endif

TEST_CASE("program: a closed standard output does not write into the run's files") {
    TempDir folder;
    const std::string run = folder / "run";
    CHECK(shell(cat(trainer_path(), " --generated 24 --size 16 --batch 8 --epochs 1 --out ", run,
                    " <&- >&- 2>&-")) == 0);
    CHECK(read_log(run).size() > 2);  // each line is JSON
}

TEST_CASE("program: without a word it trains, and its first line says so and names --help") {
    TempDir folder;
    Process process(folder, "bare", {});
    CHECK(process.wait_for("--help"));
    CHECK(contains(split(process.output(), '\n')[0], "--help"));
}

TEST_CASE("program: wrong words get exit status 1 and one sentence that names what to do") {
    TempDir folder;
    const std::string text = folder / "README.md";
    std::ofstream(text) << "# Not weights at all, but some text\n";
    std::ofstream(folder / "net.txt") << "input 32\nconv3d x\n";
    write_images(folder / "one/a", 3);
    write_images(folder / "empty/a", 3);
    std::filesystem::create_directories(folder / "empty/b");
    const struct {
        Words words;
        const char* message;
    } cases[] = {
        {{"--batchsize", "8"}, "did you mean --batch?"},
        {{"--data", "caf\xe9"}, "is not UTF-8"},
        {{"--data", folder / "nowhere"}, "nowhere"},
        {{"--data", folder / "one"}, "one class"},
        {{"--data", folder / "empty"}, "empty/b"},
        {{"--model", folder / "net.txt"}, "net.txt line 2"},
        {{"--device", "cuda:999"}, "cuda:999"},
        {{"--augment", "crop,jitter=0.4:0.4"}, "0.4:0.4:0.4:0.1"},
        {{"--sync", "async", "--wire", "bf16"}, "--sync async"},
        {{"--size", "32", "--augment", "resize,translate=32"}, "translate=32"},
        {{"pack", "--data", folder / "one", "x", "y"}, "--data"},
        {{"pack", folder / "one", folder / "one/new/out"}, "one/new/out"},
        {{"check", "--data", folder / "one", "x"}, "--data"},
        {{"predict", "--from", "x", "-"}, "data '-'"},
        {{"--coord", "x:99999", "--rank", "0"}, "99999"},
        {{"--resume", folder / "one"}, "--resume"},
        {{"--out", "/proc/none"}, "/proc/none"},
        {{"eval", "--from", folder / "one"}, "holds no model"},
        {{"predict", "--from", "x"}, "trainer predict"},
        {{"finetune"}, "WEIGHTS"},
        {{"finetune", text, "--generated", "48"}, ".pth"},
        {{"import", text, "--classes", "a,b", "--out", folder / "x.safetensors"}, ".pth"},
        {{"eval", "--from", text}, ".safetensors"},
        {{"eval", "--from", text + "/x"}, "/x"},
        {{"check", folder / "empty/b"}, "folder above"},
        {{"--coord", "localhost:1", "--token-file", folder / "none"}, "trainer token"},
        {{"import"}, "trainer import FILE"},
        {{"finetune", text}, "--data DIR"},
    };
    for (const auto& [words, message] : cases) {
        const auto [status, output] = run_trainer(words);
        CAPTURE(output, message);
        CHECK(status == 1);
        CHECK(contains(output, message));
        const size_t error = output.find("error: ");
        REQUIRE(error != std::string::npos);
        CHECK(std::count(output.begin() + long(error), output.end(), '\n') == 1);
    }
}

TEST_CASE("program: trains, logs, validates, evaluates, predicts, exports, imports and resumes") {
    TempDir folder;
    const std::string run = folder / "run";
    const std::string output = output_of(small({"--out", run, "--log-every", "2"}));
    CHECK(contains(output, "epoch 1/2  step 2/5  loss "));
    CHECK(contains(output, "validation after epoch 2"));
    CHECK(contains(output, "done: 10 steps"));

    std::map<std::string, int> events;
    double val_top1 = -1;
    for (const json& event : read_log(run)) {
        ++events[event.at("event").get<std::string>()];
        if (event["event"] == "val") val_top1 = std::max(val_top1, event["top1"].get<double>());
    }
    CHECK(events["step"] >= 4);
    CHECK(events["epoch"] == 2);
    CHECK(events["val"] == 2);
    CHECK(events["done"] == 1);
    CHECK(std::filesystem::read_symlink(run + "/latest") == "step-00000010");

    const json eval = json::parse(
        output_of({"eval", "--from", run, "--generated", "48", "--batch", "7", "--json"}));
    CHECK(eval["images"] == 8);
    CHECK(eval["top1"].get<double>() == doctest::Approx(val_top1));  // --from takes the best one

    write_images(folder / "photos", 3);
    std::ofstream(folder / "photos/broken.jpg") << "no image";
    const std::string predicted =  // one of the files is no image, and is named
        output_of({"predict", "--from", run, folder / "photos", "--json"}, 1);
    CHECK(contains(predicted, "broken.jpg"));
    const std::vector<json> guesses = json_lines(predicted);
    REQUIRE(guesses.size() >= 3);
    CHECK(guesses[0]["top5"].size() == 3);
    double total = 0;
    for (const json& guess : guesses[0]["top5"]) total += guess["probability"].get<double>();
    CHECK(total == doctest::Approx(1).epsilon(1e-4));

    write_images(folder / "odd\nname", 2);
    const std::string some = output_of(
        {"predict", "--from", run, "--json", folder / "gone.jpg", folder / "odd\nname"}, 1);
    CHECK(some.find("error: ") < some.find("gone.jpg"));
    CHECK(json_lines(some).at(0)["file"] == folder / "odd\nname/0.png");
    CHECK(contains(some, "1.png"));

    const std::string file = folder / "w.safetensors", again = folder / "again.safetensors";
    output_of({"export", "--from", run, "--out", file});
    const std::string onnx = folder / "m.onnx";
    output_of({"export", "--from", run, "--with-preprocessing", "--out", onnx});
    CHECK(contains(read_file(onnx), "probabilities"));  // the name says which format
    output_of({"export", "--from", run, "--format", "onnx", "--out", folder / "m"});
    CHECK(contains(read_file(folder / "m"), "conv5.weight"));
    CHECK(contains(output_of({"export", "--from", run, "--with-preprocessing", "--out", file}, 1),
                   "--out FILE.onnx"));
    output_of({"export", "--from", run, "--format", "tar", "--out", onnx}, 1);
    CHECK(contains(output_of({"export", "--from", run, "--out", folder / "w.pt"}, 1), "--out"));
    output_of(Words{"import", file, "--out", again} +
              typed("--model tiny --size 32 --classes circle,square,triangle"));
    const std::string numbered = folder / "numbered.safetensors";
    output_of({"import", file, "--size", "32", "--out", numbered});
    std::set<std::string> classes;
    const json ranking =
        json::parse(output_of({"predict", "--from", numbered, "--json", folder / "photos/0.png"}));
    for (const json& guess : ranking["top5"]) classes.insert(guess["class"]);
    CHECK(classes == std::set<std::string>{"0", "1", "2"});
    SafeTensors damaged = read_safetensors(numbered);
    for (auto& [name, tensor] : damaged.tensors)
        if (name.starts_with("fc")) tensor.values[0] = NAN;
    write_safetensors(folder / "nan.safetensors", damaged);
    const std::string nan = output_of(
        {"predict", "--from", folder / "nan.safetensors", "--json", folder / "photos/0.png"}, 1);
    CHECK((contains(nan, "0.png") && contains(nan, "NaN") && !contains(nan, "null")));
    const json reimported =
        json::parse(output_of({"eval", "--from", again, "--generated", "48", "--json"}));
    CHECK(reimported["loss"].get<double>() == doctest::Approx(eval["loss"].get<double>()));

    const std::string resumed = output_of({"--resume", run, "--epochs", "3"});
    CHECK(contains(resumed, "resumed from"));
    CHECK(contains(resumed, "done: 15 steps"));
}

TEST_CASE("program: the recipe's network learns the generated shapes in twenty steps") {
    TempDir folder;
    // The settings name a model's file from the root of the repository.
    CHECK(shell(cat("CONVOY_PREFLIGHT=off ", trainer_path(),
                    " train --settings tools/recipes/cifar10.txt --generated 600 --epochs 2 "
                    "--batch 50 --bn-group 50 --threads 2 --quiet --out ",
                    folder / "run")) == 0);
    const json eval = json::parse(
        output_of(typed("eval --generated 600 --tta shift --json --from") + Words{folder / "run"}));
    CHECK(eval["top1"] > 0.7);  // a guess is right in a third of the cases
}

TEST_CASE("program: a job of classes whose names fill more than a JOIN may hold") {
    TempDir folder;
    std::string classes;
    for (int i = 0; i < 90; ++i) {
        const std::string name = cat(std::string(200, 'a'), i);
        write_images(folder / "data/" + name, 1);
        classes += (i ? "," : "") + name;
    }
    output_of({"--coord", at(free_port()), "--world", "1", "--data", folder / "data", "--classes",
               classes, "--size", "16", "--batch", "8", "--steps", "1", "--out", folder / "run"});
}

TEST_CASE("program: in bf16 each validation is of the weights as they are then") {
    TempDir folder;
    const std::string run = folder / "run";
    output_of(small({"--precision", "bf16", "--batch", "4", "--out", run}));
    const json eval = json::parse(
        output_of(typed("eval --generated 48 --batch 4 --precision bf16 --json --from") +
                  Words{run + "/latest"}));
    CHECK(eval["loss"] == losses_of(run, {"val"}).back());
}

TEST_CASE("program: a grey rectangle as input is trained, evaluated, predicted and resumed") {
    TempDir folder;
    const std::string run = folder / "run", text = folder / "grey.txt";
    std::ofstream(text) << "input 24x16x1\nconv2d c out 8 size 3 stride 2\nrelu\nflatten\n"
                           "linear fc out classes\n";
    const std::string output = output_of(small({"--size", "0", "--model", text, "--out", run}));
    CHECK(contains(output, "input 24x16x1"));
    CHECK(json::parse(output_of({"eval", "--from", run, "--json"}))["images"] == 8);
    write_images(folder / "some", 2);
    output_of({"predict", "--from", run, folder / "some"});
    output_of({"--resume", run, "--epochs", "3", "--size", "24x16x1"});
    CHECK(contains(output_of({"--resume", run, "--epochs", "4", "--size", "16"}, 1),
                   "--size was 24x16x1 in the run to resume"));
    // A built-in network takes what --size says.
    output_of(small({"--size", "16x24x1", "--steps", "1", "--out", folder / "b"}));
}

TEST_CASE("program: a diverging run says where, and leaves a checkpoint from before") {
    TempDir folder;
    const std::string run = folder / "run";
    const std::string output =
        output_of(small({"--out", run, "--lr", "1000", "--weight-decay", "10", "--warmup", "0",
                         "--epochs", "200", "--save-every", "0"}),
                  1);
    CHECK(contains(output, "NaN or infinity in the "));
    CHECK(std::filesystem::exists(run + "/latest/meta.json"));
}

TEST_CASE("program: a run folder is not mixed with another run, nor a run with other settings") {
    TempDir folder;
    const std::string run = folder / "run";
    output_of(small({"--out", run}));
    CHECK(contains(output_of(small({"--out", run}), 1), "holds a run already"));
    CHECK(contains(output_of({"--resume", run, "--model", "resnet18"}, 1), "--model was tiny"));
    CHECK(contains(output_of({"--resume", run, "--seed", "9"}, 1), "--seed was 1"));
    CHECK(contains(output_of({"--resume", run, "--init", "x"}, 1), "--init"));
    // Nothing is left to do: its checkpoint stays as it is, and another folder gets one.
    const auto written = std::filesystem::last_write_time(run + "/latest/meta.json");
    CHECK(contains(output_of({"--resume", run, "--quiet"}), "--epochs"));
    CHECK(std::filesystem::last_write_time(run + "/latest/meta.json") == written);
    output_of({"--resume", run, "--out", folder / "other"});
    CHECK(std::filesystem::exists(folder / "other/latest/meta.json"));
    // Another batch: the epochs that are left are trained, and the run folder is the same one.
    CHECK(contains(output_of({"--resume", run + "/latest", "--batch", "20", "--epochs", "4"}),
                   "done: 14 steps"));
    CHECK(std::filesystem::read_symlink(run + "/latest") == "step-00000014");
}

TEST_CASE("program: a file that may not grow ends the run, which says that nothing was saved") {
    TempDir folder;
    const std::string run = folder / "run";
    TightLimit limit(RLIMIT_FSIZE, 20'000);
    Process full(folder, "full", small({"--epochs", "1", "--out", run}));
    limit.lift();
    CHECK(full.wait() == 1);
    const std::string output = full.output();
    CAPTURE(output);
    CHECK(contains(output, "model.safetensors cannot be written: File too large"));
    CHECK(!contains(output, "saved the state"));
    CHECK(!std::filesystem::exists(run + "/latest"));
}

TEST_CASE("program: a run whose images changed goes on at an epoch's end, else begins it again") {
    TempDir folder;
    for (const char* name : {"a", "b"}) {
        std::filesystem::create_directories(folder.path() / "data" / name);
        for (int i = 0; i < 12; ++i)
            std::ofstream(cat(folder / "data", "/", name, "/", i, ".ppm"))
                << "P6 8 8 255\n"
                << std::string(192, char(i * 9));
    }
    const auto run = [&](const Words& more) {
        return output_of(more + typed("--batch 8 --model tiny --size 16 --threads 1 --data") +
                         Words{folder / "data"});
    };
    run({"--epochs", "1", "--out", folder / "whole"});
    run({"--epochs", "1", "--steps", "2", "--out", folder / "half"});
    std::filesystem::remove(folder / "data/a/0.ppm");
    CHECK(contains(run({"--resume", folder / "whole", "--epochs", "2"}), "done: 6 steps"));
    CHECK(contains(run({"--resume", folder / "half", "--epochs", "1"}), "done: 5 steps"));
}

TEST_CASE("program: a run folder in use is refused; notices save and end a run, but for nohup") {
    TempDir folder;
    const std::string run = folder / "run";
    const auto begin = [&](const char* name, const std::string& out) {
        auto process = std::make_unique<Process>(
            folder, name, small({"--epochs", "100000", "--log-every", "1", "--out", out}));
        REQUIRE(process->wait_for("epoch 3/"));
        return process;
    };
    const auto inherited = signal(SIGHUP, SIG_DFL);  // the tests may run under nohup
    const auto first = begin("first", run);
    CHECK(contains(output_of({"--resume", run}, 1), cat("process ", first->pid(), " ")));
    for (int i = 0; i < 2; ++i) first->kill(SIGHUP);
    CHECK(first->wait() == 128 + SIGHUP);
    const int64_t step = json::parse(read_file(run + "/latest/meta.json"))["step"];
    output_of({"--resume", run, "--steps", cat(step + 1)});

    for (const int notice : {SIGUSR1, SIGXCPU}) {
        const std::string out = folder / cat("run", notice);
        const auto process = begin(cat("notice", notice).c_str(), out);
        for (int i = 0; i < 3; ++i) process->kill(notice);
        CHECK(process->wait() == 128 + notice);
        CHECK(std::filesystem::exists(out + "/latest/meta.json"));
    }

    signal(SIGHUP, SIG_IGN);
    const auto second = begin("second", folder / "nohup");
    signal(SIGHUP, inherited);
    second->kill(SIGHUP);
    second->kill(SIGINT);
    CHECK(second->wait() == 128 + SIGINT);
    CHECK(contains(second->output(), "to continue"));
}

TEST_CASE("program: a signal at the end of an epoch leaves its validation to --resume") {
    TempDir folder;
    const std::string run = folder / "run";
    const Words one_step = {"--batch", "40", "--epochs", "100000", "--log-every", "1"};
    Process stopped(folder, "stopped", small(one_step + Words{"--out", run}));
    REQUIRE(stopped.wait_for("epoch 3/"));
    stopped.kill(SIGINT);
    CHECK(stopped.wait() == 128 + SIGINT);
    const int epochs = json::parse(read_file(run + "/latest/meta.json"))["epoch"].get<int>() + 1;
    for (int i = 0; i < 2; ++i) output_of({"--resume", run, "--epochs", cat(epochs)});
    CHECK(losses_of(run, {"val"}).size() == size_t(epochs));
    CHECK(losses_of(run, {"epoch"}).size() == size_t(epochs));
}

TEST_CASE("program: SIGINT to one of two ranks stops both at one step, and the run can go on") {
    TempDir folder;
    const std::string run = folder / "run";
    Cluster ranks(folder, 2, endless(run) + Words{"--price", "2"});
    REQUIRE(ranks[0].wait_for("epoch 2/"));
    ranks[1].kill(SIGINT);
    CHECK(contains(ranks.end(130), "stopped by signal 2 after step"));
    CHECK(read_log(run).back()["cost"].get<double>() > 0);
    const json meta = json::parse(read_file(run + "/latest/meta.json"));
    CHECK(meta["step"].get<int>() > 5);
    const std::string steps = cat(meta["step"].get<int>() + 2);
    const double spent = read_log(run).back()["cost"];
    CHECK(meta.at("spent").at("cost").get<double>() == doctest::Approx(spent));
    CHECK(contains(output_of({"--resume", run, "--steps", steps, "--price", "3600"}),
                   cat("done: ", steps, " steps")));
    const std::vector<json> events = read_log(run);
    std::vector<double> steps_at;
    for (const json& event : events)
        if (event["event"] == "step") steps_at.push_back(event["time"]);
    const json& done = events.back();
    const double cost = done["cost"].get<double>() - spent;         // one unit a second
    CHECK(cost > steps_at.back() - steps_at[steps_at.size() - 2]);  // the two steps of this run
    CHECK(cost <= done["seconds"].get<double>());  // the sum is formed before the last checkpoint
}

TEST_CASE("program: two ranks on one host cost what the host costs, once") {
    TempDir folder;
    const std::string run = folder / "run";
    Cluster ranks(folder, 2,
                  small({"--out", run, "--price", "1", "--watts", "1", "--grams-per-kwh", "400"}),
                  {"--threads", "1", "--price", "72", "--watts", "360"});
    const std::string output = ranks.end();
    CAPTURE(output);
    CHECK(contains(output, " g CO2e"));
    int events = 0;
    double before = 0, first_step = 0, last_step = 0;
    for (const json& event : read_log(run)) {
        if (event["event"] == "step") {
            last_step = event["time"];
            if (first_step == 0) first_step = last_step;
        }
        if (event["event"] != "epoch" && event["event"] != "done") continue;
        CAPTURE(event.dump());
        const double cost = event.at("cost"), kwh = event.at("kwh"), seconds = cost * 3600 / 72;
        CHECK(cost > before);
        CHECK(event.at("grams_co2e").get<double>() == doctest::Approx(400 * kwh));
        CHECK(kwh == doctest::Approx(0.36 * seconds / 3600));
        if (event["event"] == "done") {  // the sum is formed between the last step and the end
            CHECK(seconds <= event["seconds"].get<double>());
            CHECK(seconds > last_step - first_step);
        }
        before = cost, ++events;
    }
    CHECK(events == 3);
}

TEST_CASE("program: where a lost rank ends the job, the others end within seconds, saved") {
    const struct {
        int world;
        Words words;
        std::vector<int> killed;
        int saves;  // the lowest rank that is left; -1: only the whole job has the state
    } cases[] = {{3, {"--elastic", "off"}, {2}, 0},
                 {4, {"--elastic", "off"}, {0, 1}, 2},
                 {2, {"--elastic", "off", "--sync", "average:4"}, {1}, 0},
                 {3, {"--elastic", "off", "--sync", "async"}, {2}, -1},
                 {2, {"--sync", "pipeline:2"}, {1}, -1}};
    for (const auto& [world, words, killed, saves] : cases) {
        CAPTURE(join_text(words, " "));
        TempDir folder;
        Cluster ranks(folder, world, endless(folder / "run") + words,
                      {"--threads", "1", "--out", folder / "heir"});
        REQUIRE(ranks[0].wait_for("epoch 3/"));
        for (const int rank : killed) ranks[rank].kill(SIGKILL);
        for (int rank = 0; rank < world; ++rank) {
            if (std::ranges::count(killed, rank)) continue;
            CHECK(ranks[rank].wait(30) == 1);
            CAPTURE(ranks[rank].output());
            CHECK(contains(ranks[rank].output(), cat("rank ", killed[0], " (127.0.0.1:")));
        }
        if (saves < 0) continue;
        const json meta = json::parse(
            read_file(cat(folder / (saves == 0 ? "run" : "heir"), "/latest/meta.json")));
        CHECK(meta["step"] > 5);
        CHECK(meta["step"] == meta["optimizer_steps"]);
    }
}

#ifndef __SANITIZE_THREAD__  // each job would take minutes

#ifdef __SANITIZE_ADDRESS__
constexpr const char* kSizeOfThree = "32";  // a tenth of the speed
#else
constexpr const char* kSizeOfThree = "64";
#endif

TEST_CASE(
    "program: --join before the job stands, to a rank that is not the coordinator, and twice") {
    // However a batch is cut, its groups for batch norm are the same; and with so low a learning
    // rate roundings do not grow. 240 steps take a few seconds.
    const Words words = small(typed("--epochs 60 --save-every 0 --log-every 1 --batch 12 "
                                    "--bn-group 1 --lr 0.0005 --generated 57 --size") +
                              Words{kSizeOfThree});
    TempDir folder, calm;
    Cluster job(folder, 3, words + Words{"--out", folder / "run"});
    Process third(folder, "third", {"--join", "--coord", at(job.port), "--threads", "1"});
    CHECK(third.wait_for(") joined; 4 ranks go on from step ", 30));
    const std::string text = third.output(), name = "rank 3 (";
    std::string address = text.substr(text.find(name) + name.size());
    address = address.substr(0, address.find(')'));
    // Without --join and a number too.
    Process fourth(folder, "fourth", {"--coord", address, "--threads", "1"});
    CHECK(fourth.wait_for(") joined; 5 ranks go on from step ", 30));
    CHECK(contains(output_of({"--coord", address, "--rank", "1", "--join-timeout", "0.5"}, 1),
                   cat("not of the coordinator, which is at ", at(job.port))));
    third.kill(SIGKILL);
    CHECK(job[0].wait_for("; 4 ranks, step ", 30));
    for (auto& rank : job.all) CHECK(rank->wait(180) == 0);
    CHECK(fourth.wait(180) == 0);
    CAPTURE(job[0].output(), fourth.output());
    std::vector<int> worlds;
    for (const json& event : read_log(folder / "run"))
        if (event["event"] == "regroup") worlds.push_back(event["ranks"]);
    CHECK(worlds == std::vector{4, 5, 4});
    Cluster undisturbed(calm, 3, words + Words{"--out", calm / "run"});
    for (auto& rank : undisturbed.all) REQUIRE(rank->wait(180) == 0);
    const auto losses = [](const std::string& run) {  // by step
        std::map<int, double> all;
        for (const json& event : read_log(run))
            if (event["event"] == "step") all[event["step"]] = event["loss"];
        return all;
    };
    const std::map<int, double> got = losses(folder / "run"), want = losses(calm / "run");
    REQUIRE(want.size() == 240);
    for (const auto& [step, loss] : want) {
        CAPTURE(step);
        CHECK(std::abs(got.at(step) - loss) < 0.002);
    }
}

TEST_CASE("program: a damaged heartbeat costs a connection, not a rank") {
    for (const size_t place : {2, 18}) {  // of magic and length
        CAPTURE(place);
        TempDir folder;
        const uint16_t port = free_port();
        std::atomic<int> pieces{0}, damaged{0};
        Relay relay([&] { return port; },
                    [&](std::span<char> piece) {
                        if (++pieces < 9 || damaged > 0 || piece.size() < wire::kHeaderBytes ||
                            piece[6] != char(wire::Type::heartbeat))
                            return;
                        piece[place] ^= 2;
                        ++damaged;
                    });
        Process rank0(folder, "0",
                      small({"--world", "2", "--epochs", "1000000", "--save-every", "0", "--coord",
                             at(port), "--rank", "0", "--out", folder / "run", "--open"}));
        REQUIRE(rank0.wait_for("missing rank 1"));
        Process rank1(folder, "1",
                      {"--coord", at(relay.port()), "--rank", "1", "--threads", "1", "--open"});
        CHECK(rank0.wait_for("; 2 ranks, step "));
        CHECK(damaged == 1);
        for (Process* rank : {&rank0, &rank1}) rank->kill(SIGTERM);
        for (Process* rank : {&rank0, &rank1}) CHECK(rank->wait() == 128 + SIGTERM);
        CAPTURE(rank0.output());
        CHECK(!contains(rank0.output(), " lost: "));
    }
}

// Flips a bit of the weights that begin with `values`, in the memory of another process. Returns
// how many copies of them it found.
static int flip_a_bit(pid_t pid, std::span<const float> values) {
    const std::string proc = cat("/proc/", pid);
    std::ifstream maps(proc + "/maps");
    const int memory = open((proc + "/mem").c_str(), O_RDWR | O_CLOEXEC);
    REQUIRE(memory >= 0);
    int found = 0;
    const std::string_view wanted(reinterpret_cast<const char*>(values.data()),
                                  values.size_bytes());
    for (std::string line; std::getline(maps, line);) {
        size_t begin = 0, end = 0;
        if (std::sscanf(line.c_str(), "%zx-%zx rw", &begin, &end) != 2) continue;
        if (!contains(line, " rw") || end - begin > 256 << 20) continue;
        std::string bytes(end - begin, '\0');
        if (pread(memory, bytes.data(), bytes.size(), off_t(begin)) != ssize_t(bytes.size()))
            continue;
        for (size_t i = 0; (i = bytes.find(wanted, i)) != std::string::npos; i += wanted.size()) {
            bytes[i] = char(bytes[i] ^ 1);
            found += pwrite(memory, &bytes[i], 1, off_t(begin + i)) == 1;
        }
    }
    close(memory);
    return found;
}

// A job whose checks are far apart, and of which a bit of rank `of` flips in step 20. Whatever
// saves then must find it.
struct FlippedBit {
    FlippedBit(int world, int of, const std::string& save_every)
        : ranks(folder, world,
                small(typed("--generated 12000 --batch 6 --size 16 --steps 5000 --freeze 1 "
                            "--log-every 10 CONVOY_CHECK_EVERY=100000 --save-every") +
                      Words{save_every, "--out", folder / "run"}),
                typed("--threads 1 --decode-threads 1 --out") + Words{folder / "heir"}) {
        // The first layer's weights stay what they were drawn as.
        const auto backend = make_backend("cpu", {.threads = 1});
        Model model(model_text("tiny"), {.size = 16, .seed = uint64_t(Config().seed)}, *backend);
        const std::span first(model.params().all().front()->value.floats(), 16);
        REQUIRE(ranks[0].wait_for("step 20/"));
        CHECK(flip_a_bit(ranks[of].pid(), first) > 0);
    }
    // What rank 0 has written down: (step, which ranks differed from which), and saved steps.
    void read() {
        for (const json& event : read_log(folder / "run")) {
            if (event["event"] == "unequal") unequal.push_back(event);
            if (event["event"] == "checkpoint") saved.push_back(event["step"]);
        }
    }
    TempDir folder;
    Cluster ranks;
    std::vector<json> unequal;
    std::vector<int64_t> saved;
};

TEST_CASE("program: a bit that flips in a rank's memory is found before a checkpoint is written") {
    FlippedBit job(2, 1, "0.1");
    REQUIRE(job.ranks[0].wait_for(" held other weights than rank 0"));
    for (auto& rank : job.ranks.all) rank->kill(SIGINT);
    for (auto& rank : job.ranks.all) CHECK(rank->wait(30) == 130);
    job.read();
    CAPTURE(job.ranks[0].output());
    REQUIRE(job.unequal.size() == 1);
    CHECK(job.unequal[0]["ranks"] == json({1}));
    CHECK(std::ranges::count(job.saved, job.unequal[0]["step"].get<int64_t>()) == 1);
}

TEST_CASE("program: before rank 0 leaves, a rank with a flipped bit takes rank 0's weights") {
    FlippedBit job(3, 1, "0");
    job.ranks[0].kill(SIGTERM);
    CHECK(job.ranks[0].wait(30) == 0);
    job.read();
    CAPTURE(job.ranks[0].output());
    REQUIRE(job.unequal.size() == 1);
    CHECK(job.unequal[0]["ranks"] == json({1}));
    REQUIRE(job.saved.size() == 1);
    CHECK(job.unequal[0]["step"] == job.saved[0]);
    for (int rank = 1; rank < 3; ++rank) job.ranks[rank].kill(SIGINT);
    for (int rank = 1; rank < 3; ++rank) CHECK(job.ranks[rank].wait(30) == 130);
}

TEST_CASE("program: where rank 0 says --share auto, a newcomer's share is measured too") {
    TempDir folder;
    Cluster ranks(folder, 2,
                  {"--out", folder / "run", "--generated", "48", "--batch", "12", "--size", "32",
                   "--epochs", "4000", "--threads", "1", "--share", "auto", "--save-every", "0"});
    Process &rank0 = ranks[0], &rank1 = ranks[1];
    REQUIRE(rank0.wait_for("epoch 2/"));
    Process rank2(folder, "rank2", {"--join", "--coord", at(ranks.port), "--threads", "1"});
    CHECK(rank2.wait_for(": --share ", 30));
    CHECK(rank0.wait_for(") joined; 3 ranks go on from step ", 30));
    rank0.kill(SIGINT);
    for (Process* rank : {&rank0, &rank1, &rank2}) CHECK(rank->wait(30) == 130);
    CAPTURE(rank2.output());
}

#endif

TEST_CASE(
    "program: --sync average with a rank that has no images, resumed with all ranks training") {
    TempDir folder;
    const std::string run = folder / "run";
    const auto train = [&](const Words& settings) {
        const std::string output = Cluster(folder, 2, settings).end();
        // Equal on both ranks at the end of each epoch, or it would be said.
        CHECK(!contains(output, "differ by roundings"));
        return output;
    };
    const std::string first = train(small({"--share", "0:1", "--sync", "average:3", "--optimizer",
                                           "adamw", "--wire", "bf16", "--out", run}));
    CHECK(contains(first, "averaged every 3 steps"));
    const json meta = json::parse(read_file(run + "/latest/meta.json"));
    CHECK(meta["step"] == 10);
    CHECK(meta["optimizer_steps"] == 10);  // of rank 1, which took them
    // Lines come with averages: at steps 3, 5 (end of the epoch), 6, 9 and 10.
    std::vector<int> counted;
    for (const json& event : read_log(run))
        if (event["event"] == "epoch") counted.push_back(event["images"]);
    CHECK(counted == std::vector<int>{40, 40});
    train({"--resume", run, "--share", "1:1", "--sync", "ring", "--epochs", "4", "--threads", "1",
           "CONVOY_PREFLIGHT=off"});
}

static const Words kPipeline = {"--sync", "pipeline:2:3", "CONVOY_SPLIT=conv3", "--bn-group", "2"};

TEST_CASE("program: every way to synchronise, resumed in mid-run, ends with the same bits") {
    const struct {
        int world;
        Words words;
        const char* said;
    } cases[] = {
        {3, {"--sync", "diloco:2", "--share", "4:3:1", "--wire", "bf16"}, "every 2 steps: 0."},
        {3, {"--sync", "diloco:2", "--share", "4:3:1"}, "DiLoCo, lr 0.7, momentum 0.9"},
        {3, {"--sync", "server:2", "--share", "4:3:1"}, "2 of 3 ranks serve"},
        {2, kPipeline, "stages 0 to bn3"},
    };
    for (const auto& [world, words, said] : cases) {
        CAPTURE(said);
        TempDir folder;
        const std::string run = folder / "run", again = folder / "again";
        const std::string output =
            Cluster(folder, world,
                    small({"--save-every", "0.6", "--keep", "9", "--out", run}) + words)
                .end();
        CAPTURE(output);
        CHECK(contains(output, said));
        CHECK(!contains(output, "held other weights"));
        // In the middle of an epoch of 5 steps.
        Cluster(folder, world,
                words + Words{"--resume", run + "/step-00000003", "--threads", "1",
                              "CONVOY_PREFLIGHT=off", "--out", again})
            .end();
        check_same_checkpoint(run, again);
    }
}

TEST_CASE("program: a run continues with another way to synchronise, or on other ranks") {
    TempDir folder;
    const std::string ring = folder / "ring", stages = folder / "stages";
    const auto has_outer = [](const std::string& path) {
        return contains(read_file(path + "/latest/optim.safetensors"), "outer/");
    };
    Cluster(folder, 2, small({"--out", ring})).end();
    CHECK(!has_outer(ring));
    Cluster(folder, 2,
            {"--resume", ring, "--epochs", "3", "--sync", "diloco:2", "--threads", "1",
             "CONVOY_PREFLIGHT=off"})
        .end();
    CHECK(has_outer(ring));

    // A pipeline on two ranks; then on one rank; and two pipelines, whose first ranks hold more
    // than their stage once it was saved.
    const auto last_loss = [](const std::string& of, const char* kind = "val") {
        return losses_of(of, {kind}).back();
    };
    const std::string alone = folder / "alone", four = folder / "four";
    const Words saves = {"--save-every", "0.6", "--keep", "9"};
    Cluster(folder, 2, small(saves + Words{"--out", stages}) + kPipeline).end();
    output_of({"--resume", stages + "/step-00000003", "--threads", "1", "--out", alone});
    Cluster(folder, 4, small(saves + Words{"CONVOY_CHECK_EVERY=1", "--out", four}) + kPipeline)
        .end();
    for (const std::string& other : {alone, four})
        CHECK(last_loss(other) == doctest::Approx(last_loss(stages)).epsilon(1e-3));

    // A head that --init does not have starts as it does on one rank.
    const std::string net = folder / "net";
    std::string text = output_of({"models", "tiny"});
    text.replace(text.find("linear fc"), 9, "linear head");
    std::ofstream(net) << text;
    const Words from = small({"--init", stages + "/latest/model.safetensors", "--model", net,
                              "--steps", "1", "--log-every", "1", "--bn-group", "2"});
    Cluster(folder, 2, from + kPipeline + Words{"--out", folder / "head"}).end();
    output_of(from + Words{"--out", folder / "head1"});
    const double first = last_loss(folder / "head1", "step");
    CHECK(last_loss(folder / "head", "step") == doctest::Approx(first).epsilon(1e-5));
    CHECK(std::abs(first - std::log(3.0)) > 1e-3);  // of a head of zeros

    Cluster stopped(folder, 2, endless(folder / "stopped") + kPipeline);
    REQUIRE(stopped[0].wait_for("epoch 2/"));
    stopped[1].kill(SIGTERM);
    stopped.end(128 + SIGTERM);
    CHECK(std::filesystem::exists(folder / "stopped/latest/model.safetensors"));
}

TEST_CASE("program: --sync async logs its figures at the end of each epoch") {
    TempDir folder;
    const std::string run = folder / "run";
    Cluster(folder, 3, small({"--sync", "async:3:none", "--out", run})).end();
    int gathered = 0;
    for (const json& event : read_log(run)) {
        if (event["event"] == "sync") {
            CHECK(event["figures"]["staleness_max"] >= 0);
            ++gathered;
        }
        if (event["event"] == "epoch") CHECK(event["images"] == 40);
    }
    CHECK(gathered == 2);
}

TEST_CASE("program: what a rank's user typed must agree with rank 0") {
    TempDir folder;
    Cluster ranks(folder, 2, small({"--join-timeout", "5", "--out", folder / "run"}),
                  {"--batch", "99"});
    ranks.end(1);
    CHECK(contains(ranks[1].output(), "--batch 99"));
    CHECK(contains(ranks[1].output(), "rank 0 says 8"));
}

TEST_CASE("program: rank 0's settings hold in the benchmarks too") {
    TempDir folder;
    const Words sums = {"bench", "allreduce"}, steps = {"bench", "train", "--threads", "1"};
    const std::string output =
        Cluster(folder, 2, sums + Words{"--bytes", "1K,64K", "--wire", "bf16", "--json"}, sums)
            .end();
    CHECK(std::count(output.begin(), output.end(), '\n') == 2);
    const json last = json_lines(output).at(1);
    CHECK((last["wire"] == "bf16" && last["bytes"] == 65536));
    const std::string trained =
        Cluster(folder, 2, steps + Words{"--size", "16", "--batch", "6", "--steps", "1", "--json"},
                steps)
            .end();
    CHECK(json::parse(trained)["batch"] == 6);
}

TEST_CASE("program: SIGINT to one rank ends a benchmark of sums on both") {
    TempDir folder;
    std::string sizes = "4K";
    for (int i = 0; i < 1000; ++i) sizes += ",4K";
    const Words words = {"bench", "allreduce"};
    Cluster ranks(folder, 2, words + Words{"--bytes", sizes}, words);
    REQUIRE(ranks[0].wait_for("4K"));
    ranks[1].kill(SIGINT);
    CHECK(ranks[1].wait() == 130);
    CHECK(ranks[0].wait() == 1);
    CHECK(contains(ranks[0].output(), "stopped by signal 2"));
}

TEST_CASE("program: evaluation over several ranks counts every image once, on any device" *
          doctest::test_suite("device")) {
    TempDir folder;
    const std::string run = folder / "run";
    output_of(small({"--out", run, "--epochs", "1", "--size", "16"}));
    const json one = json::parse(output_of({"eval", "--from", run, "--json"}));
    for (const auto& [world, device] : {std::pair(2, kernel_device()), {3, std::string("cpu")}}) {
        CAPTURE(world);
        const Words words = {"eval", "--device", device, "--threads", "1"};
        const json all = json_lines(
            Cluster(folder, world, words + Words{"--batch", "5", "--json", "--from", run}, words)
                .end())[0];
        CHECK(all["images"] == one["images"]);
        CHECK(all["correct"] == one["correct"]);
        CHECK(all["loss"].get<double>() == doctest::Approx(one["loss"].get<double>()));
    }
    const auto with_views = [&](const std::string& device) {
        return json::parse(output_of(
            {"eval", "--device", device, "--tta", "shift", "--from", run, "--json"}))["loss"];
    };
    CHECK(with_views(kernel_device()).get<double>() ==
          doctest::Approx(with_views("cpu").get<double>()));
}

TEST_CASE("program: tiny trains on the CUDA kernels to the losses of the CPU, and is used there" *
          doctest::test_suite("device")) {
    TempDir folder;
    const auto train = [&](const std::string& device, const std::string& augment = "resize,flip") {
        const std::string run = folder / (device + augment);
        const std::string output =
            output_of(small({"--device", device, "--augment", augment, "--epochs", "1",
                             "--log-every", "1", "--size", "16", "--out", run}));
        CHECK(contains(output, cat("device     ", device)));
        return losses_of(run, {"step", "epoch", "val"});
    };
    const std::vector<double> cpu = train("cpu"), simt = train(kernel_device());
    REQUIRE(cpu.size() == 7);  // five steps, the epoch, the validation
    // Sums in another order, through five steps of batch norm.
    CHECK_CLOSE(simt, cpu, 1e-5);
    const std::vector<double> mixed = train("cpu", "resize,mixup=0.5");
    CHECK(mixed != cpu);
    CHECK_CLOSE(train(kernel_device(), "resize,mixup=0.5"), mixed, 1e-5);
}

TEST_CASE(
    "program: bench train replays its steps where a CUDA graph can, and says where it cannot" *
    doctest::test_suite("device")) {
    const auto bench = [](const Words& more) {
        return output_of(typed("bench train --size 16 --batch 2 --steps 1 --threads 1") + more);
    };
    const json on_device = json::parse(bench({"--device", kernel_device(), "--json"}));
    CHECK(on_device["graph"] == true);
    CHECK(on_device["upload_gb_per_second"] > 0);
    CHECK(json::parse(bench(
              {"--device", kernel_device(), "--json", "CONVOY_GRAPH=off"}))["graph"] == false);
    const std::string output = bench({"--device", "cpu", "CONVOY_GRAPH=on"});
    CAPTURE(output);
    const size_t notice = output.find("CONVOY_GRAPH=on: ");
    REQUIRE(notice != std::string::npos);
    CHECK(output.find("device cpu", notice) != std::string::npos);
}

TEST_CASE("program: --early-stop ends two ranks at the same step, also resumed") {
    TempDir folder;
    const auto train = [&](const Words& more) {
        Cluster ranks(folder, 2, small({"--epochs", "9"}) + more);
        const std::string output = ranks.end();
        CHECK(contains(ranks[1].output(), "done: "));
        return output;
    };
    const std::string run = folder / "run", other = folder / "other";
    train({"--epochs", "1", "--schedule", "onecycle", "--ema", "0.9", "--accumulate", "2",
           "--bn-group", "2", "--clip-norm", "1", "--warmup", "0.5", "--out", run});
    const std::vector<json> log = read_log(run);
    CHECK(log.back()["how"] == "finished");
    CHECK(log.back()["step"] == 5);
    int norms = 0;
    for (const json& event : log) norms += event.value("gradient_norm", 0.0) > 0;
    CHECK(norms > 0);
    // With a learning rate of almost nothing only statistics change, and after a while no top1.
    CHECK(contains(train({"--early-stop", "2", "--lr", "1e-9", "--out", other}),
                   "--early-stop: 2 validations without"));
    const int64_t last = read_log(other).back()["step"];
    CHECK(last >= 15);
    CHECK(last < 45);
    const json meta = json::parse(read_file(other + "/latest/meta.json"));
    CHECK(meta["stale_validations"] == 2);
    Process again(folder, "again", {"--resume", other, "--threads", "1"});
    CHECK(again.wait(30) == 0);
    CHECK(read_log(other).back()["step"] == last);
    Process refused(folder, "refused", small({"--early-stop", "1", "--data", other}));
    CHECK(refused.wait(30) == 1);
}

TEST_CASE("program: with --ema a checkpoint's model is the average, and is what was validated") {
    TempDir folder;
    const std::string run = folder / "run";
    output_of(small({"--ema", "0.9", "--out", run}));
    const json eval = json::parse(
        output_of(typed("eval --generated 48 --json --threads 1 --from") + Words{run + "/latest"}));
    CHECK(eval["loss"].get<double>() ==
          doctest::Approx(losses_of(run, {"val"}).back()).epsilon(1e-5));
    CHECK(contains(output_of({"--resume", run, "--ema", "0"}, 1), "--ema was 0.9"));
}

TEST_CASE("program: a rank that sees other images leaves the job, and the others train") {
    TempDir folder;
    write_images(folder / "good/a", 6), write_images(folder / "good/b", 6);
    write_images(folder / "bad/a", 6), write_images(folder / "bad/b", 5);
    const uint16_t port = free_port();
    const auto rank = [&](int number, const char* data) {
        return Words{"--data", folder / data, "--coord", at(port), "--rank", cat(number)} +
               typed("--threads 1 --decode-threads 1");
    };
    Process first(folder, "rank0",
                  rank(0, "good") + typed("--world 4 --size 16 --batch 6 --epochs 1 --out") +
                      Words{folder / "run"});
    Process second(folder, "rank1", rank(1, "good")), third(folder, "rank2", rank(2, "bad")),
        fourth(folder, "rank3", rank(3, "none"));
    CHECK(third.wait() == 1);
    CHECK(contains(third.output(), "--join"));
    CHECK(fourth.wait() == 1);
    CHECK(contains(fourth.output(), folder / "none"));
    CHECK(first.wait() == 0);
    CHECK(second.wait() == 0);
    CHECK(contains(first.output(), "all ranks together: "));
}
